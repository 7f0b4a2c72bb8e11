"""Device and host memory: JAX's pool, and the size of the KV cache."""
