"""Allocators of near memory, on paper: how much of it fragmentation takes away."""
