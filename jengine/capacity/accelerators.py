"""Memory and rates of accelerators, from their vendors' data sheets. Data only.

Memory and rates are the printed ones: 1 GB is 1e9 bytes, bfloat16 without sparsity, and a link in
one direction (data sheets print both directions together).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Accelerator:
    """A device type, and its links to the other devices of a host."""

    name: str
    memory: float  # bytes
    bandwidth: float  # bytes per second
    flops: float  # bfloat16 operations per second
    link: float  # bytes per second to the other devices of the host, one way
    link_name: str = "NVLink"
    host_link: float = 64e9  # bytes per second from the host's memory: PCIe 5, 16 lanes
    source: str = "vendor's data sheet"
    cores: int = 0  # of a memory node of a CPU
    capability: int = 0  # 90 for NVIDIA's 9.0; 0 for other devices


ACCELERATORS = {
    "b200": Accelerator("B200 180 GB", 180e9, 8.0e12, 2250e12, 900e9, capability=100),
    "h200": Accelerator("H200 SXM 141 GB", 141e9, 4.8e12, 989e12, 450e9, capability=90),
    "h100": Accelerator("H100 SXM 80 GB", 80e9, 3.35e12, 989e12, 450e9, capability=90),
    "a100": Accelerator(
        "A100 SXM 80 GB", 80e9, 2.039e12, 312e12, 300e9, host_link=32e9, capability=80
    ),
    "l40s": Accelerator("L40S 48 GB", 48e9, 0.864e12, 362e12, 32e9, "PCIe", 32e9, capability=89),
}
