"""What is shown while work goes on: live progress, tables and numbers, and the answer to Ctrl-C."""
