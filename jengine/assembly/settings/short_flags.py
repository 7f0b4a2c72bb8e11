"""vLLM's short flags, by the setting that each one is a second name for."""

from __future__ import annotations

SHORT_FLAGS = {
    "quantization": "-q",
    "tensor_parallel_size": "-tp",
    "pipeline_parallel_size": "-pp",
    "decode_context_parallel_size": "-dcp",
    "prefill_context_parallel_size": "-pcp",
    "enable_expert_parallel": "-ep",
    "nnodes": "-n",
    "node_rank": "-r",
    "data_parallel_size": "-dp",
    "data_parallel_size_local": "-dpl",
    "data_parallel_start_rank": "-dpr",
    "data_parallel_address": "-dpa",
    "data_parallel_rpc_port": "-dpp",
    "data_parallel_backend": "-dpb",
    "speculative_config": "-sc",
    "compilation_config": "-cc",
}
