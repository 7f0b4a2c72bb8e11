"""Triton kernels for NVIDIA GPUs behind public functions, each with an XLA reference.

The folder has its name from the project's founders; no kernel in it is written in Pallas today. One
folder per operation: its public function, its XLA implementation that runs anywhere, its kernels.
`implementation=None` always works; a named implementation that cannot run raises. A leaf package:
it imports nothing of jengine.
"""
