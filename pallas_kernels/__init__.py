"""Triton kernels for NVIDIA GPUs and C++ kernels for CPUs, each with an XLA reference.

The name was given with the project; no kernel is written in Pallas today. One folder per operation:
its public function, an XLA implementation that runs on every backend, and its Triton kernels.
`implementation=None` always works; a named implementation that cannot run raises. A leaf package:
it imports nothing of jengine.
"""
