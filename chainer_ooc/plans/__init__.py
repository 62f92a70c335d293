"""What execution follows, how it is made for a policy, how it outlives its process, and how it ran."""
