"""Terminal output: live progress, tables and numbers, and the response to Ctrl-C."""
