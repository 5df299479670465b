"""Losses: tensors in, scalar out, usable in any training loop."""
