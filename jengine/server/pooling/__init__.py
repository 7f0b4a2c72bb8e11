"""Endpoints of pooling models: embeddings, classes, scores and rankings of prompts."""
