"""Runs plans: packs each into one buffer, runs a compiled step on it, reads the results back.

The only room that turns host numbers into device arrays and back. Must not know requests or text.
"""
