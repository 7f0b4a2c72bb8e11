"""`jengine bench serve`: load generator for OpenAI-compatible servers, with client-side metrics.

In: a URL, or a model to serve; a dataset; arrivals. Out: latencies, throughput and goodput, named
and counted as `vllm bench serve` names and counts them. Nothing here imports jax.
"""
