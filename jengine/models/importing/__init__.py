"""Imports decoders without a family of their own, from their tensors and config.json."""
