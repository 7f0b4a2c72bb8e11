"""Runs plans: packs each into one buffer, runs a compiled step on it, reads the results back.

The only package that moves data between host and devices. Must not know requests or text.
"""
