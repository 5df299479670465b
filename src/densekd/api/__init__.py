"""The functions of the public API that show progress: what commands do, from Python."""
