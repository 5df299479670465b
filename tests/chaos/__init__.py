"""Trial by accident and by malice: kills, damaged folders, bad command lines, odd Python calls."""
