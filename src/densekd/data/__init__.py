"""Data: sources, tasks, batches and the exemplar memory."""
