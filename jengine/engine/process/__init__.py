"""An engine core in a process of its own, and the clients that reach it over a local socket.

Any number of fronts may use one core. Nothing here imports jax or knows how an engine is built.
"""
