"""What an iteration does, seen while it runs."""
