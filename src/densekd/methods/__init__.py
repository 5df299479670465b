"""Learning methods and their parts: terms, phases, schedules and published settings."""
