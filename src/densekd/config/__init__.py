"""The settings of a run: what a user may write, and their defaults."""
