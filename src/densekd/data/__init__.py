"""Images, labels and class names: where they come from and in what order they are learned."""
