"""Validates users' settings. No jax."""
