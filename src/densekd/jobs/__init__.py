"""Background jobs: what they report, the processes that run them, and the time they have left."""
