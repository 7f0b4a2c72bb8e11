"""Reproducible benchmarks: each prints a table, and one JSON object as its last line."""
