"""A model on a frozen backbone: it keeps features of photos and refits its head to them."""
