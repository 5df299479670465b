"""A model's page in the browser: look at images, teach new classes, undo."""
