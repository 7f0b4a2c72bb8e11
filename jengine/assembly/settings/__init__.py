"""From what users give to checked settings. No jax."""
