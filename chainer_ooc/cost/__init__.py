"""How long computations and transfers take."""
