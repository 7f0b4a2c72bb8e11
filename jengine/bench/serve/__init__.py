"""`jengine bench serve`: load on a server of OpenAI's API, and what its users see of it.

In: a URL, or a model to serve; a dataset; arrivals. Out: latencies, throughput and goodput, named
and counted as `vllm bench serve` names and counts them. Nothing here imports jax.
"""
