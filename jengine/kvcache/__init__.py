"""Paged KV cache bookkeeping on the host.

In: requests and how many tokens they need. Out: block ids per cache group, and prefix hits. Must
not know: who runs next, arrays, jax.
"""
