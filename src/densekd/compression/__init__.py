"""Model compression: a small network learns from a large one."""
