"""A decision laid out: what runs again, what each position needs, and when each swap-in may start."""
