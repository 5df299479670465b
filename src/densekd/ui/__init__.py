"""A model's page in the browser: classify images, teach new classes, undo."""
