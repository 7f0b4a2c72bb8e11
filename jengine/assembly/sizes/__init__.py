"""Sizes of steps and caches, from settings and the device."""
