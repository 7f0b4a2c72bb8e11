"""Compares random small configs of every model family with transformers, on each implementation."""
