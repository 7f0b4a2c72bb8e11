"""A compile target without hardware: XLA's description of an H200, and the environment
variables."""

from __future__ import annotations

import os
from pathlib import Path

# As `--xla_dump_to` writes it on a machine that has one. The versions inside the device's own part
# matter: without them XLA leaves calls out of command buffers.
H200 = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 4800000000000
  l2_cache_size: 62914560
  clock_rate_ghz: 1.98
  device_memory_size: 150754820096
  shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 feature_extension: ACCELERATED_FEATURES }
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  driver_version: "13.0.0"
  runtime_version: "13.0.0"
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
runtime_version { major: 12 minor: 9 }
device_description_str: "NVIDIA H200"
"""


def environment(dump: Path) -> dict[str, str]:
    """Environment of a process that compiles for an absent GPU and dumps XLA's output."""
    flags = [
        os.environ.get("XLA_FLAGS", ""),
        f"--xla_dump_to={dump}",
        "--xla_dump_hlo_module_re=.*(step|forward|sample|score).*",
    ]
    return {
        **{name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"},
        "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
        "CUDA_VISIBLE_DEVICES": "-1",
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "XLA_FLAGS": " ".join(filter(None, flags)),
    }
