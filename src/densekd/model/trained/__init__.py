"""A model whose network is trained on its images, by a method of continual learning."""
