"""Tokenizers made of the vocabularies in GGUF files."""
