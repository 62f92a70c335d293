"""GPUs, through CuPy. Nothing of CuPy is imported before an array of it was seen."""
