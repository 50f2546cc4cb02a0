"""Prints runs, steps and episodes in a terminal: every line fits its width, and unsafe characters are escaped."""
