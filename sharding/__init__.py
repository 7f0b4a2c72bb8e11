"""The only place that names mesh axes: logical axes of parameters to axes of a device mesh.

A leaf package: jax and numpy only, nothing of jengine.
"""
