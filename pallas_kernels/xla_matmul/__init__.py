"""Which library runs the matmuls that XLA compiles on NVIDIA GPUs. No kernel of ours.

cuBLASLt adds the residual in the matmul and needs no sum over parts of k afterwards, two launches
less in each layer than Triton's, which XLA otherwise tries beside it.
"""

from __future__ import annotations

from pallas_kernels.tuning import tuned

CUBLASLT = "cublaslt"
# XLA times both for each matmul, on a device, and takes the faster one.
TIMED_BY_XLA = "xla"
LIBRARIES = (CUBLASLT, TIMED_BY_XLA)


def matmul_library(capability: int, tokens: int) -> str:
    """The library for the matmuls of a program of so many tokens; `capability` is 90 for 9.0."""
    return tuned("xla_matmul", capability=capability, tokens=tokens)["library"]
