"""One benchmark run."""
