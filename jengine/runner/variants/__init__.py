"""The compiled variants of a step: shapes, features and the list of programs. Plain data, no
jax."""
