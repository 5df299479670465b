"""Networks: backbones that return features, and classifiers that grow."""
