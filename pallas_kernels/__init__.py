"""Attention and its neighbours on a paged cache. A leaf package: jax and numpy only.

One folder an operation: the public function and a plain XLA implementation that runs anywhere.
`implementation=None` always works; a named one that cannot run fails loudly.
"""
