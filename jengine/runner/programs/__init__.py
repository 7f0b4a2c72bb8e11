"""Compiled steps: how they are made, kept, found and counted."""
