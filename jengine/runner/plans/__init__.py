"""Plans to packed numbers and results back to plans. Numpy; must not know programs."""
