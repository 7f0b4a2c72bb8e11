"""Chooses the library (cuBLASLt or Triton) of the matmuls that XLA compiles on NVIDIA GPUs.

cuBLASLt adds the residual in the matmul and needs no split-K reduction: two launches less per layer
than Triton's, which XLA otherwise also tries.
"""

from __future__ import annotations

from pallas_kernels.tuning import tuned

CUBLASLT = "cublaslt"
# XLA autotunes each matmul on the device.
TIMED_BY_XLA = "xla"
LIBRARIES = (CUBLASLT, TIMED_BY_XLA)


def matmul_library(capability: int, tokens: int) -> str:
    """The matmul library for a program of this many tokens; `capability` is 90 for 9.0."""
    return tuned("xla_matmul", capability=capability, tokens=tokens)["library"]
