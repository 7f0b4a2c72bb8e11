"""Compiled steps: compilation, caching, lookup and statistics."""
