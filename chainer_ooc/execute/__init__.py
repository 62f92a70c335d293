"""Runs iterations: what is in near memory, what is away, and who waits for whom."""
