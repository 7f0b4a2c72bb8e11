"""Implementations under test: kernels, dtypes, and features that must not change an answer.

In: a name. Out: an engine's settings, and the environment that its process needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from jengine.bench.xla_flags import known_flags
from jengine.runner.variants.features import GREEDY_SCORED

# Half the compile time of a CPU's programs, whose fusions are not what is searched, except where
# XLA computes the model.
QUICK_XLA = known_flags(
    ("--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1")
)
PLAIN_PROCESSOR = "-mno-avx512f -mno-avx2 -mno-fma -mno-avx"


class Implementation(NamedTuple):
    """One implementation: engine settings and environment variables."""

    settings: Mapping[str, Any]
    environment: Mapping[str, str] = {}  # before anything is imported
    dtype: str = "float32"  # of weights
    # What torch computes with where an answer is to be no further from float32 than torch's; none:
    # it is to be equal to torch's.
    rounding: Mapping[str, str] = {}
    # Weights are multiples of a scale by at most this integer: rounding them to codes loses
    # nothing. 0: they are any numbers.
    largest_code: int = 0
    adapter_rank: int = 0  # of an adapter that is compared with the merged model; 0: none
    impossible: str = ""  # matches messages that refuse shapes which it does not compute


CPU = {"attention_backend": "cpu"}
# No other draw has the same programs, and every request is greedy.
COMPILED_ONCE = {"cache_dir": False, "variants": [GREEDY_SCORED]}
# Four rows of a token and three drafts.
DRAFTING = {
    **CPU, "compilation_config": {"decode_rows": [16], "prefill_tokens": [64], **COMPILED_ONCE}
}  # fmt: skip
IMPLEMENTATIONS: Mapping[str, Implementation] = {
    "cpu": Implementation(CPU),
    "cpu-avx2": Implementation(CPU, {"CXX": "g++ -mno-avx512f"}),
    "cpu-basic": Implementation(CPU, {"CXX": f"g++ {PLAIN_PROCESSOR}"}),
    "xla": Implementation({"attention_backend": "xla"}, {"XLA_FLAGS": ""}),
    "triton": Implementation({"attention_backend": "triton"}, {"TRITON_INTERPRET": "1"}),
    "gpu": Implementation(
        {  # recurrent layers take tiles of 128 tokens there
            "attention_backend": "triton",
            "compilation_config": {"decode_rows": [4], "prefill_tokens": [128], **COMPILED_ONCE},
        },
        {
            "JAX_PLATFORMS": "cuda", "TRITON_INTERPRET": "0", "XLA_FLAGS": "",
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "0", "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        },
    ),
    "bfloat16": Implementation(CPU, dtype="bfloat16", rounding={"dtype": "bfloat16"}),
    "int8": Implementation({**CPU, "quantization": "int8"}, largest_code=127),
    "int4": Implementation(
        {**CPU, "quantization": "int4"}, largest_code=7, impossible="int4 stores pairs of inputs"
    ),
    "int8-cache": Implementation(
        {**CPU, "kv_cache_dtype": "int8"}, rounding={"cache": "int8"},
        impossible="that latent attention caches are not stored in codes",
    ),
    "adapter": Implementation(
        {**CPU, "enable_lora": True, "max_lora_rank": 4}, adapter_rank=4,
        impossible="no module that adapters change|an adapter cannot change here",
    ),
    "ngram": Implementation(
        {
            **DRAFTING,
            "speculative_config": {"method": "ngram", "num_speculative_tokens": 3,
                                   "prompt_lookup_min": 1, "prompt_lookup_max": 3},
        }
    ),
    "suffix": Implementation(
        {**DRAFTING, "speculative_config": {"method": "suffix", "num_speculative_tokens": 3}}
    ),
    "several-steps": Implementation({**CPU, "num_scheduler_steps": 4}),
    "tp2": Implementation(
        {**CPU, "tensor_parallel_size": 2},
        {"XLA_FLAGS": f"{QUICK_XLA} --xla_force_host_platform_device_count=2"},
    ),
}  # fmt: skip
