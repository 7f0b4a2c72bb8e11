"""Compile-time checks of GPU kernels and steps on a machine without a GPU.

    python -m jengine.bench.gpu_proof

compiles every kernel for several devices and whole steps of real-shaped models for an H200, and
writes the compilers' reports as JSON and as tables. It says nothing about speed.
"""
