"""Tests with weights that are published, from packages that hold them: marker `published`."""
