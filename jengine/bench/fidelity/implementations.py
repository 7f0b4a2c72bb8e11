"""What computes a model: kernels, types of numbers, and features that must not change an answer.

In: a name. Out: an engine's settings, and the environment that its process needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

PLAIN_PROCESSOR = "-mno-avx512f -mno-avx2 -mno-fma -mno-avx"


class Implementation(NamedTuple):
    """One way to compute the same model."""

    settings: Mapping[str, Any]
    environment: Mapping[str, str] = {}  # before anything is imported
    dtype: str = "float32"  # of weights, and of what torch is compared in


IMPLEMENTATIONS: Mapping[str, Implementation] = {
    "cpu": Implementation({"attention_backend": "cpu"}),
    "cpu-avx2": Implementation(
        {"attention_backend": "cpu"}, {"CXX": "g++ -mno-avx512f"}
    ),
    "cpu-basic": Implementation(
        {"attention_backend": "cpu"}, {"CXX": f"g++ {PLAIN_PROCESSOR}"}
    ),
    "xla": Implementation({"attention_backend": "xla"}),
    "triton": Implementation({"attention_backend": "triton"}, {"TRITON_INTERPRET": "1"}),
    "bfloat16": Implementation({"attention_backend": "cpu"}, dtype="bfloat16"),
    "ngram": Implementation(
        {
            "attention_backend": "cpu",
            "speculative_config": {"method": "ngram", "num_speculative_tokens": 3,
                                   "prompt_lookup_min": 1, "prompt_lookup_max": 3},
            # Four rows of a token and three drafts.
            "compilation_config": {"decode_rows": [16], "prefill_tokens": [64]},
        }
    ),
    "suffix": Implementation(
        {
            "attention_backend": "cpu",
            "speculative_config": {"method": "suffix", "num_speculative_tokens": 3},
            "compilation_config": {"decode_rows": [16], "prefill_tokens": [64]},
        }
    ),
    "several-steps": Implementation({"attention_backend": "cpu", "num_scheduler_steps": 4}),
    "tp2": Implementation(
        {"attention_backend": "cpu", "tensor_parallel_size": 2},
        {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
    ),
}  # fmt: skip
