"""Networks: backbones that give features, classifiers that grow."""
