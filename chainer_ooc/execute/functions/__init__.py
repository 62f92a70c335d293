"""What is known about a program's functions, and how one call of them is run again."""
