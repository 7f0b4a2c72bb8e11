"""Counts the causal classes of transformers that run here, and compares each with transformers."""
