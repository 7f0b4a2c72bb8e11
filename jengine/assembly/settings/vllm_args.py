"""vLLM's engine settings that are no field of EngineArgs: what each one is for, and its default.

A setting left at vLLM's default, or None, asks for nothing and is accepted; any other value is
refused with what to use instead. When a feature is built, its settings become fields of EngineArgs
and leave this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from jengine.errors import ConfigError, UnsupportedFeature

# vLLM's name -> ours, where the value means the same.
RENAMED = {
    "memory_utilization": "gpu_memory_utilization",
    "async_scheduling": "overlap",
    "use_tqdm_on_load": "show_progress",
}

# feature -> its settings with vLLM's defaults. A list holds several accepted values.
FEATURES: dict[str, dict[str, Any]] = {
    "quantization": {
        "quantization_config": None, "allow_deprecated_quantization": False,
        "kv_cache_dtype_skip_layers": None,
    },
    "LoRA adapters": {
        "default_mm_loras": None, "fully_sharded_loras": False,
        "enable_tower_connector_lora": False,
        "specialize_active_lora": False, "enable_mixed_moe_lora_format": False,
        "enable_moe_shared_loras": False, "max_lora_cls_labels": None,
    },
    "speculative decoding": {
        "spec_method": None, "spec_model": None, "spec_tokens": None,
        "per_request_spec_decode_metrics": "none",
    },
    "multimodal input": {
        "language_model_only": False, "enable_mm_embeds": False,
        "interleave_mm_strings": False, "media_io_kwargs": None,
        "mm_processor_cache_gb": 4, "mm_processor_cache_type": "lru",
        "mm_hasher_algorithm": "blake3", "mm_shm_cache_max_object_size_mb": 128,
        "mm_encoder_only": False,
        "mm_encoder_attn_backend": None, "mm_encoder_attn_dtype": None,
        "mm_encoder_fp8_scale_path": None, "mm_encoder_fp8_scale_save_path": None,
        "mm_encoder_fp8_scale_save_margin": 1.5, "skip_mm_profiling": False,
        "video_pruning_rate": None, "video_pruning_method": "evs", "mm_tensor_ipc": "direct_rpc",
        "mm_processor_device": "auto", "mm_ipc_gpu_memory_gb": 0, "mm_device_do_normalize": True,
        "disable_chunked_mm_input": False, "enable_mm_processor_stats": False,
        "ec_manager_config": None, "ec_transfer_config": None,
    },
    "overrides of the model's config": {
        "hf_config_path": None, "model_class_overrides": None,
        "rope_scaling": None, "rope_theta": None,
    },
    "downloading models": {
        "revision": None, "code_revision": None, "tokenizer_revision": None, "hf_token": None,
        "download_dir": None, "ignore_patterns": ["original/**/*", ["original/**/*"]],
    },
    "the HTTP server": {
        "served_model_name": None, "max_num_queued_reqs": None, "max_num_queued_tokens": None,
        "shutdown_timeout": 0, "tokens_only": False, "renderer_num_workers": 1,
        "io_processor_plugin": None, "_api_process_count": 1, "_api_process_rank": 0,
    },
    "sleep mode": {
        "sleep_mode_backend": "cumem",
        "sleep_mode_offload_cudagraph": False, "sleep_preserve_parameter_names": None,
        "enable_cumem_allocator": False, "enable_nccl_comm_suspend": False,
    },
    "expert parallelism": {
        "enable_ep_weight_filter": False,
        "enable_elastic_ep": False,
        "elastic_ep_max_dp_size": None,
        "expert_placement_strategy": "linear", "enable_hc_sp": False, "dp_sync_interval": 16,
        "enable_dbo": False, "ubatch_size": 0, "dbo_decode_token_threshold": 32,
        "dbo_prefill_token_threshold": 512,
    },
    "context parallelism": {
        "dcp_comm_backend": [None, "ag_rs"],
        "dcp_q_replicate": None, "dcp_kv_cache_interleave_size": 1,
        "cp_kv_cache_interleave_size": None,
    },
    "offload to host memory": {
        "offload_backend": "auto",
        "offload_group_size": 0, "offload_num_in_group": 1, "offload_prefetch_step": 1,
        "offload_params": None,
    },
    "export of metrics and traces": {
        "show_hidden_metrics_for_version": None, "collect_detailed_traces": None,
        "custom_histogram_buckets": None,
        "aggregate_engine_logging": False,
        "enable_logging_iteration_details": False, "enable_log_requests": False,
    },
    "recurrent layers": {
        "mamba_config": None, "mamba_backend": "triton",
        "mamba_ssu_algorithm": None, "enable_mamba_shared_prefix_checkpoint": False,
        "enable_mamba_cache_stochastic_rounding": False, "mamba_cache_philox_rounds": 0,
        "replayssm_buffer_len": 16, "use_replayssm": False, "gdn_prefill_backend": None,
        "kda_prefill_backend": None, "kda_decode_backend": None,
    },
    "returning sampling masks": {"return_sampling_mask": False, "aux_output_config": None},
    "forced decoding": {"enable_trace_replay": False},
    "watermarks": {"watermark_config": None},
    "diffusion models": {"diffusion_config": None},
    "engram memories": {"engram_config": None},
    "fault tolerance": {
        "fault_tolerance_config": None, "enable_fault_tolerance": False, "watchdog_config": None,
    },
}  # fmt: skip

# what to do instead -> settings of vLLM that will not be built, with the values that ask for
# nothing.
INSTEAD: dict[str, dict[str, Any]] = {
    "steps are compiled for fixed shapes, there are no CUDA graphs; choose the shapes with "
    "compilation_config={'decode_rows': [...], 'prefill_tokens': [...]}": {
        "cudagraph_capture_sizes": None, "max_cudagraph_capture_size": None,
        "max_seq_len_to_capture": 8192, "cudagraph_metrics": False,
    },
    "XLA always optimises; enforce_eager=True starts faster by compiling on first use": {
        "optimization_level": 2, "performance_mode": "balanced",
    },
    "choose kernels with attention_backend='auto', 'cpu', 'triton' or 'xla'": {
        "attention_config": None, "kernel_config": None, "ir_op_priority": None,
        "moe_backend": "auto", "linear_backend": "auto", "sparse_indexer_topk_backend": "auto",
        "enable_flashinfer_autotune": None, "monokernel": False, "use_fp64_gumbel": False,
        "enable_batch_sharded_sampling": None, "use_v2_block_manager": [True, False],
        # There is none here to disable, so both values are true already.
        "disable_custom_all_reduce": [True, False],
        "disable_nccl_for_dp_synchronization": [True, False],
    },
    "whole layers stay in the host's memory; say how much of them with cpu_offload_gb": {
        "cpu_offload_params": None,
    },
    "weights are read from safetensors or Orbax folders (load_format)": {
        "model_weights": "", "config_format": "auto",
        "safetensors_load_strategy": None, "safetensors_prefetch_num_threads": 8,
        "safetensors_prefetch_block_size": 16 * 1024 * 1024,
        "max_parallel_loading_workers": None, "pt_load_map_location": "cpu",
    },
    "pass a tokenizer object as tokenizer=": {"tokenizer_mode": ["auto", "hf"]},
    "JAX chooses the devices: set JAX_PLATFORMS, or give mesh=": {
        "device": "auto", "device_ids": None, "numa_bind": False, "numa_bind_nodes": None,
        "numa_bind_cpus": None,
    },
    "one process drives all its devices, nnodes and node_rank describe several, and executor says "
    "who runs the steps": {
        "distributed_executor_backend": ["uni", "mp"], "enable_shm_tensor_arena": False,
    },
    "waits of processes for one another are set with multihost={'meet': ..., 'silence': ..., "
    "'stuck': ...}, in seconds": {
        "distributed_timeout_seconds": None, "cpu_distributed_timeout_seconds": None,
    },
    "one front routes to all ranks": {
        "data_parallel_rank": None, "data_parallel_hybrid_lb": False,
        "data_parallel_external_lb": False, "data_parallel_multi_port_external_lb": False,
    },
    "give a class of your own as executor='package.module:Class'": {
        "worker_cls": "auto", "worker_extension_cls": "", "ray_workers_use_nsight": False,
    },
    "use max_num_batched_tokens, max_num_seqs, long_prefill_token_threshold and "
    "scheduling_policy": {
        "max_num_scheduled_tokens": None, "max_num_active_seqs": None, "scheduler_cls": None,
        "prefill_schedule_interval": 1, "long_prefill_token_threshold_adaptive": False,
        "scheduler_reserve_full_isl": True, "watermark": 0.0,
    },
    "blocks are named by sha256, and every hit is a run of whole blocks": {
        "prefix_caching_hash_algo": "sha256", "prefix_cache_retention_interval": [None, 0],
        "prefix_match_unit": None,
    },
    "sliding windows are part of the model, with a cache of their own size": {
        "disable_sliding_window": False, "disable_hybrid_kv_cache_manager": False,
        "kv_sharing_fast_prefill": False, "swa_bounded_replay": True,
    },
    "a request that loses its blocks finds them in the host's memory again where "
    "kv_offloading_size gives it some": {
        "swap_space": [0, 4], "preemption_mode": "recompute",
    },
    "set stream_interval in SamplingParams": {"stream_interval": 1},
    "llguidance follows all grammars; give structured_outputs_config={...} for the rest": {
        "guided_decoding_backend": ["auto", "guidance"],
    },
    "parsers of reasoning are built in; give the name of one as reasoning_parser": {
        "reasoning_parser_plugin": ["", None],
    },
    "use llm.update_params(...)": {"weight_transfer_config": None},
    "strict=True makes a compile after warm-up an error": {
        "jit_monitor_mode": "warn", "jit_monitor_verbose": False,
    },
    "use profiler_config={'profiler': 'jax', 'dir': folder}": {
        "enable_layerwise_nvtx_tracing": False,
    },
    "use Python's logging.getLogger('jengine')": {
        "logging_config": None, "log_level": None, "log_config_file": None,
        "disable_log_requests": True,
    },
    "estimates of a step's operations and bytes are always among the metrics": {
        "enable_mfu_metrics": [False, True],
    },
    "every setting is a separate argument": {
        "additional_config": None, "fail_on_environ_validation": False,
    },
}  # fmt: skip


class VllmSetting(NamedTuple):
    """A setting of vLLM that EngineArgs has no field for."""

    feature: str | None  # that it would change; not built yet
    instead: str | None  # what to use
    unused: tuple[Any, ...]  # values that ask for nothing

    def asks_for_nothing(self, value: Any) -> bool:
        """Whether a value leaves everything as it is."""
        empty = isinstance(value, (dict, list, tuple, set)) and not value
        return value is None or empty or value in self.unused


def _settings() -> dict[str, VllmSetting]:
    found = {}
    for table, is_feature in ((FEATURES, True), (INSTEAD, False)):
        for words, names in table.items():
            for name, unused in names.items():
                values = tuple(unused) if isinstance(unused, list) else (unused,)
                feature, instead = (words, None) if is_feature else (None, words)
                found[name] = VllmSetting(feature, instead, values)
    return found


VLLM_SETTINGS = _settings()


def own_settings(owner: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What was given, in EngineArgs' names; refuses what needs something that is not there."""
    result: dict[str, Any] = {}
    for name, value in given.items():
        executor = named_executor(name, value)
        if executor is None and name in VLLM_SETTINGS:
            refuse_use(owner, name, value)
            continue
        new = RENAMED.get(name, name)
        if executor is not None:
            new, value = "executor", executor
        if new in result or (new != name and new in given):
            raise ConfigError(f"{owner}: {name} and {new} mean the same; give one of them.")
        result[new] = value
    return result


def named_executor(name: str, value: Any) -> str | None:
    """The executor that one of vLLM's settings names; None if it names none.

    A worker class is an executor's class here, which starts its workers by itself.
    """
    if (name, value) == ("distributed_executor_backend", "ray"):
        return value
    if name != "worker_cls" or not isinstance(value, str) or value in ("auto", ""):
        return None
    if ":" in value:
        return value
    module, _, attribute = value.rpartition(".")
    return f"{module}:{attribute}" if module else None


def refuse_use(owner: str, name: str, value: Any) -> None:
    """Raise unless the value asks for nothing."""
    setting = VLLM_SETTINGS[name]
    if setting.asks_for_nothing(value):
        return
    if setting.feature is not None:
        raise UnsupportedFeature(
            f"{owner}({name}={value!r}): a setting of {setting.feature} that is not built yet; "
            f"leave {name} out."
        )
    raise UnsupportedFeature(f"{owner}({name}={value!r}): {setting.instead}; leave {name} out.")
