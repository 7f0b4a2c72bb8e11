"""vLLM's settings that do not affect outputs: tuning of vLLM's internals, or of features that only
vLLM has.

vLLM scripts pass many of them, so any value is accepted, and the log says once why it has no
effect. Values of our settings by vLLM's names are translated to the nearest ones.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any

logger = logging.getLogger(__name__)

# Settings of the server, which vLLM's engines accept too.
SERVERS = "it is a setting of the HTTP server (jengine serve)"
# why there is no effect -> vLLM's settings with its defaults; a list holds several.
WITHOUT_EFFECT: dict[str, dict[str, Any]] = {
    SERVERS: {
        "served_model_name": None, "max_num_queued_reqs": None, "max_num_queued_tokens": None,
        "shutdown_timeout": 0, "enable_log_requests": False, "disable_log_requests": True,
        "stream_interval": 1, "_api_process_count": 1, "_api_process_rank": 0,
    },
    "media are decoded and cut up in this process, and what is encoded is found by its content": {
        "mm_processor_cache_gb": 4, "mm_processor_cache_type": "lru",
        "mm_hasher_algorithm": "blake3", "mm_shm_cache_max_object_size_mb": 128,
        "mm_encoder_attn_backend": None, "skip_mm_profiling": False, "mm_tensor_ipc": "direct_rpc",
        "mm_processor_device": "auto", "mm_ipc_gpu_memory_gb": 0, "mm_device_do_normalize": True,
        "enable_mm_processor_stats": False, "video_pruning_method": "evs",
        "disable_chunked_mm_input": False, "renderer_num_workers": 1,
        "disable_mm_preprocessor_cache": False,
    },
    "towers compute in the model's dtype": {
        "mm_encoder_attn_dtype": None, "mm_encoder_fp8_scale_path": None,
        "mm_encoder_fp8_scale_save_path": None, "mm_encoder_fp8_scale_save_margin": 1.5,
    },
    "code of repositories is never run, and what is built in needs none": {
        "code_revision": None, "trust_remote_code": False,
    },
    "config.json, tokenizer.json, tokenizer.model and the chat template are read as transformers "
    "reads them; another tokenizer is an object for tokenizer=": {
        "config_format": ["auto", "hf"], "tokenizer_mode": ["auto", "hf"],
    },
    "whole layers stay in the host's memory; say how much of them with cpu_offload_gb": {
        "cpu_offload_params": None, "offload_group_size": 0, "offload_num_in_group": 1,
        "offload_prefetch_step": 1, "offload_params": None,
    },
    "states of recurrent layers are float32 and are not rounded": {
        "mamba_config": None, "enable_mamba_cache_stochastic_rounding": False,
        "mamba_cache_philox_rounds": 0,
    },
    "sliding windows are part of the model, with a cache of their own size": {
        "disable_sliding_window": False,
    },
    "JAX chooses the devices: set JAX_PLATFORMS, or give mesh=": {"device": "auto"},
    "weights are memory-mapped and copied once": {
        "safetensors_load_strategy": None, "safetensors_prefetch_num_threads": 8,
        "safetensors_prefetch_block_size": 16 * 1024 * 1024,
        "max_parallel_loading_workers": None, "pt_load_map_location": "cpu",
        "enable_ep_weight_filter": False, "allow_deprecated_quantization": False,
    },
    "steps are compiled by XLA for fixed shapes, which compilation_config={'decode_rows': [...], "
    "'prefill_tokens': [...]} chooses": {
        "cudagraph_capture_sizes": None, "max_cudagraph_capture_size": None,
        "max_seq_len_to_capture": 8192, "cudagraph_metrics": False, "optimization_level": 2,
        "cuda_graph_sizes": None,
        "performance_mode": "balanced", "jit_monitor_mode": "warn", "jit_monitor_verbose": False,
    },
    "kernels are chosen by device, or with attention_backend='cpu', 'triton' or 'xla'": {
        "attention_config": None, "kernel_config": None, "ir_op_priority": None,
        "moe_backend": "auto", "linear_backend": "auto", "sparse_indexer_topk_backend": "auto",
        "enable_flashinfer_autotune": None, "monokernel": False, "use_fp64_gumbel": False,
        "enable_batch_sharded_sampling": None, "use_v2_block_manager": [True, False],
        "disable_custom_all_reduce": [True, False],
        "disable_nccl_for_dp_synchronization": [True, False],
        "mamba_backend": "triton", "mamba_ssu_algorithm": None, "use_replayssm": False,
        "replayssm_buffer_len": 16, "gdn_prefill_backend": None, "kda_prefill_backend": None,
        "kda_decode_backend": None, "fully_sharded_loras": False, "specialize_active_lora": False,
        "kv_sharing_fast_prefill": False, "swa_bounded_replay": True,
    },
    "processes and devices exchange what JAX has them exchange": {
        "dcp_comm_backend": [None, "ag_rs"], "dcp_q_replicate": None,
        "dcp_kv_cache_interleave_size": 1, "cp_kv_cache_interleave_size": None,
        "expert_placement_strategy": "linear", "enable_hc_sp": False, "dp_sync_interval": 16,
        "enable_dbo": False, "ubatch_size": 0, "dbo_decode_token_threshold": 32,
        "dbo_prefill_token_threshold": 512, "enable_shm_tensor_arena": False,
        "numa_bind": False, "numa_bind_nodes": None, "numa_bind_cpus": None,
        "distributed_timeout_seconds": None, "cpu_distributed_timeout_seconds": None,
        "ray_workers_use_nsight": False, "enable_nccl_comm_suspend": False,
    },
    "steps are planned by max_num_batched_tokens, max_num_seqs, long_prefill_token_threshold and "
    "scheduling_policy": {
        "max_num_scheduled_tokens": None, "max_num_active_seqs": None,
        "prefill_schedule_interval": 1, "long_prefill_token_threshold_adaptive": False,
        "scheduler_reserve_full_isl": True, "watermark": 0.0, "preemption_mode": "recompute",
        "max_num_partial_prefills": 1, "max_long_partial_prefills": 1, "num_lookahead_slots": 0,
        "scheduler_delay_factor": 0.0, "disable_async_output_proc": False,
    },
    "each kind of layer has a cache of its own, whose blocks are named by sha256; "
    "kv_offloading_size gives them the host's memory": {
        "prefix_caching_hash_algo": "sha256", "prefix_cache_retention_interval": [None, 0],
        "prefix_match_unit": None, "disable_hybrid_kv_cache_manager": False,
        "swap_space": [0, 4], "enable_mamba_shared_prefix_checkpoint": False,
    },
    "JAX has no other pool of memory": {
        "sleep_mode_backend": "cumem", "sleep_mode_offload_cudagraph": False,
        "enable_cumem_allocator": False, "offload_backend": "auto",
    },
    "metrics and traces have a form of their own (stats(), /metrics), and logs are those of "
    "logging.getLogger('jengine')": {
        "show_hidden_metrics_for_version": None, "collect_detailed_traces": None,
        "custom_histogram_buckets": None, "aggregate_engine_logging": False,
        "enable_logging_iteration_details": False, "enable_mfu_metrics": [False, True],
        "enable_layerwise_nvtx_tracing": False, "logging_config": None, "log_level": None,
        "log_config_file": None,
    },
    "llguidance follows all grammars": {"guided_decoding_backend": ["auto", "guidance"]},
    "every setting is a separate argument": {
        "additional_config": None, "fail_on_environ_validation": False,
    },
}  # fmt: skip

_BACKENDS = (
    "FLASH_ATTN", "TRITON_ATTN", "FLASHINFER", "FLEX_ATTENTION", "TORCH_SDPA", "CPU_ATTN",
    "ROCM_ATTN", "ROCM_AITER_FA", "XFORMERS", "PALLAS", "TREE_ATTN", "TRITON_MLA", "FLASHMLA",
    "FLASHINFER_MLA", "CUTLASS_MLA", "FLASH_ATTN_MLA", "FLASH_ATTN_VLLM_V1", "TRITON_ATTN_VLLM_V1",
)  # fmt: skip
_EXCHANGES = (
    "pplx", "deepep_high_throughput", "deepep_low_latency", "deepep_v2", "mori_high_throughput",
    "mori_low_latency", "moonep", "nixl_ep", "flashinfer_all2allv", "flashinfer_nvlink_two_sided",
    "flashinfer_nvlink_one_sided",
)  # fmt: skip
# Setting -> vLLM's value -> our nearest value.
NEAREST: dict[str, dict[Any, Any]] = {
    "attention_backend": dict.fromkeys(_BACKENDS, "auto"),
    "ignore_patterns": {"original/**/*": ["original/**/*"]},
    "load_format": {
        "hf": "auto", "fastsafetensors": "safetensors", "instanttensor": "safetensors",
        "runai_streamer": "safetensors", "gguf": "auto", "mistral": "safetensors",
    },
    "all2all_backend": {
        "naive": "allgather_reducescatter", **dict.fromkeys(_EXCHANGES, "all_to_all"),
    },
    "dtype": {"float": "float32"},
    "kv_cache_dtype": {
        "bfloat16": "auto", "float16": "auto", "fp8_e5m2": "fp8", "fp8_inc": "fp8",
        "fp8_ds_mla": "auto", "nvfp4": "fp8",
    },
    "model_impl": {"vllm": "auto", "transformers": "auto"},
    "mamba_cache_mode": {"all": "align"},
    "mamba_cache_dtype": dict.fromkeys(("bfloat16", "float16"), "float32"),
    "mamba_ssm_cache_dtype": dict.fromkeys(("bfloat16", "float16"), "float32"),
}  # fmt: skip
# dict setting -> (why vLLM's keys have no effect, these keys).
IDLE_KEYS: dict[str, tuple[str, tuple[str, ...]]] = {
    "speculative_config": (
        "a draft model has the dtype and the devices of the model, and changes no answer",
        ("quantization", "code_revision", "draft_tensor_parallel_size", "tensor_parallel_size",
         "max_model_len", "draft_load_config", "draft_sample_method", "moe_backend",
         "attention_backend", "kv_cache_dtype", "disable_by_batch_size",
         "disable_padded_drafter_batch"),
    ),
    "model_loader_extra_config": (
        "weights are memory-mapped and copied once",
        ("enable_multithread_load", "num_threads", "concurrency", "memory_limit", "distributed"),
    ),
    "media_io_kwargs": ("videos are given as frames, of which none is left out", ("video",)),
    # An optimisation level (an int) is accepted as well.
    "compilation_config": ("steps are compiled by XLA, whole", (
    "mode", "level", "debug_dump_path", "compile_cache_save_format", "backend", "custom_ops",
    "ir_enable_torch_wrap", "splitting_ops", "compile_mm_encoder", "cudagraph_mm_encoder",
    "encoder_cudagraph_token_budgets", "encoder_cudagraph_max_vision_items_per_batch",
    "encoder_cudagraph_max_frames_per_batch", "cudagraph_decoder_replay",
    "decoder_replay_cudagraph_capture_sizes", "decoder_replay_trim_threshold", "compile_sizes",
    "compile_ranges_endpoints", "use_inductor", "inductor_compile_config", "inductor_passes",
    "cudagraph_mode", "use_cudagraph", "full_cuda_graph", "cudagraph_num_of_warmups",
    "cudagraph_capture_sizes", "cudagraph_copy_inputs", "cudagraph_specialize_lora",
    "use_inductor_graph_partition", "pass_config", "max_cudagraph_capture_size",
    "dynamic_shapes_config", "fast_moe_cold_start",
    )),
}  # fmt: skip


def nearest(owner: str, name: str, value: Any) -> Any:
    """Map vLLM's value of a setting to the nearest supported one, and log a replacement."""
    if name in CONVERTED:
        value = CONVERTED[name](owner, value)
    if name in IDLE_KEYS and isinstance(value, Mapping):
        return without_idle_keys(owner, name, value)
    ours = NEAREST.get(name, {}).get(value, value) if isinstance(value, str) else value
    if ours != value:
        _note(f"{owner}({name}={value!r}): taken as {ours!r}, which is nearest to it.")
    return ours


def own_limits(owner: str, is_language_only: Any) -> dict[str, int] | None:
    """Translate language_model_only to limit_mm_per_prompt."""
    return {"image": 0, "video": 0} if is_language_only else None


def own_compilation(owner: str, given: Any) -> Any:
    """Return the dict of a compilation_config; None, with a note, for an optimisation level."""
    if isinstance(given, int) and not isinstance(given, bool):
        note_idle(owner, "compilation_config", given, "XLA always optimises")
        return None
    return given


def without_idle_keys(owner: str, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The setting without vLLM's keys that have no effect."""
    why, idle = IDLE_KEYS[name]
    for key in given:
        if key in idle:
            note_idle(owner, f"{name}[{key!r}]", given[key], why)
    return {key: value for key, value in given.items() if key not in idle}


CONVERTED: dict[str, Callable[[str, Any], Any]] = {
    "compilation_config": own_compilation,
    "language_model_only": own_limits,
}


def note_idle(owner: str, name: str, value: Any, why: str) -> None:
    """Log that a vLLM setting has no effect here."""
    _note(f"{owner}({name}={value!r:.80}) has no effect: {why}.")


@functools.lru_cache(maxsize=1024)
def _note(words: str) -> None:
    logger.warning("%s", words)  # cached: settings are checked repeatedly
