"""Every number of a plan on paper that is neither a shape nor from a data sheet.

Out: Assumptions. paper_report.py shows them beside each plan.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Assumptions:
    """Constants of the time model that neither a model's shape nor a data sheet gives."""

    # Reached by large copies and matmuls on an H200.
    bandwidth_share: float = 0.9
    flops_share: float = 0.8
    # A network port for each device, one way.
    network: float = 50e9
    # Until the first byte of an exchange has reached all devices.
    link_latency: float = 10e-6
    network_latency: float = 25e-6
    # Kernels per layer of a step compiled for an H200, where a step is one CUDA graph: the larger
    # of llama-8b (decode 307 for 32 layers, with prompt tokens 347) and qwen3-0.6b (270 and 307 for
    # 28) by `python -m jengine.bench.gpu_proof`, matmuls of 64 tokens and more by cuBLASLt.
    decode_launches: float = 9.7
    prefill_launches: float = 11.0
    between_launches: float = 1e-6  # seconds, not measured
    # Tokens at the experts of the busiest device, over the mean of all devices.
    expert_load: float = 1.0
