"""Pooling for users: embeddings, classes, rewards and scores of prompts."""
