"""A model in a folder: taught from folders of images, used, undone."""
