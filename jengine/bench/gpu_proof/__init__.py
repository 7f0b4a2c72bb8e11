"""What can be proved about the GPU kernels and steps on a machine without a GPU.

    python -m jengine.bench.gpu_proof

compiles every kernel for several devices and whole steps of real-shaped models for an H200, and
writes what the compilers say as JSON and as tables. Nothing here says how fast anything is.
"""
