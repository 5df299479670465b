"""Runs: their configuration, what they are made of, and where they are kept."""
