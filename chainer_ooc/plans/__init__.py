"""What execution follows, how it is made for a policy, and how it outlives its process."""
