"""Endpoints of pooling models: embeddings, classification, scores and reranking."""
