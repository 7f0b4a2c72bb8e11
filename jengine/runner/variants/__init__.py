"""The compiled variants of a step: shapes, features, the list of programs. Plain data, no jax."""
