"""Pooling API: embeddings, classification, rewards and scores of prompts."""
