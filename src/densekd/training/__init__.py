"""Training: a learner, its one loop, and what it saves."""
