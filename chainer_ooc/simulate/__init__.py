"""The timeline of an iteration, worked out without running it."""
