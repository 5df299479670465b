"""A model in a folder: teach it from folders of images, predict, export, undo."""
