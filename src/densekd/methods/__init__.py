"""What learning methods are made of."""
