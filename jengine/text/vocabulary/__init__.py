"""Builds tokenizers from GGUF vocabularies."""
