"""Reads config.json into a ModelConfig, and writes it."""
