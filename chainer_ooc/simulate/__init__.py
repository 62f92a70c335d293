"""The timeline of an iteration, worked out without running it; its seconds and bytes alone, in C, for searches."""
