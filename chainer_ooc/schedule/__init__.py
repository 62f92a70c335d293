"""When each swap-in may start, and whether a plan keeps within its budget."""
