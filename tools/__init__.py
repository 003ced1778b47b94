"""For those who work on the project."""
