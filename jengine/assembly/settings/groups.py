"""The settings of an engine as rooms take them: small frozen groups. No jax.

In: EngineArgs. Out: Groups. Each field has the name of a setting, or of a property of EngineArgs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_type_hints

from jengine.adapters import AdapterLimits
from jengine.assembly.settings.nodes import Nodes
from jengine.assembly.settings.warm_up import WarmUp
from jengine.config import BalanceConfig, SpeculativeConfig
from jengine.connectors.kv_events import EventSettings
from jengine.connectors.settings import TransferSettings
from jengine.connectors.weight_settings import WeightSettings


@dataclass(frozen=True)
class ModelSettings:
    """The model, and how its parameters are loaded."""

    model: Any
    params: Any
    dtype: Any
    quantization: str | None
    load_format: str
    seed: int | None
    weight_settings: WeightSettings | None
    model_impl: str
    hf_overrides: Mapping[str, Any] | None
    runner: str
    convert: str
    pooler_config: Any
    tokenizer: Any
    skip_tokenizer_init: bool
    generation_config: str
    override_generation_config: Mapping[str, Any] | None


@dataclass(frozen=True)
class ParallelSettings:
    """How a model is split over devices, replicas and nodes, and where its experts run."""

    tensor_parallel_size: int | None
    pipeline_parallel_size: int | None
    decode_context_parallel_size: int
    prefill_context_parallel_size: int
    data_parallel_size: int | None
    data_parallel_backend: str
    data_parallel_secret: str | None = field(repr=False)
    mesh: Any
    mesh_axes: Mapping[str, Any] | None
    enable_expert_parallel: bool
    all2all_backend: str
    joint_replicas: bool
    expert_balance: BalanceConfig | None
    nodes: Nodes
    devices_per_replica: int
    multihost: Mapping[str, Any] | None
    executor: str
    executor_options: Mapping[str, Any] | None
    replicas_in_processes: bool


@dataclass(frozen=True)
class CacheSettings:
    """Memory of weights and KV cache, and where blocks go that leave the device."""

    block_size: int | None
    num_gpu_blocks_override: int | None
    gpu_memory_utilization: float
    kv_cache_memory_bytes: int | None
    enable_prefix_caching: bool
    mamba_block_size: int | None
    mamba_cache_mode: str
    cache_codes: str | None
    measured_blocks: float
    transfers: TransferSettings | None
    kv_events: EventSettings | None
    cpu_offload_gb: float


@dataclass(frozen=True)
class ScheduleSettings:
    """Limits of a step and of the requests that run at once."""

    max_model_len: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    enable_chunked_prefill: bool
    long_prefill_token_threshold: int
    scheduling_policy: str
    num_scheduler_steps: int
    overlap: bool
    drafts: SpeculativeConfig | None


@dataclass(frozen=True)
class StepSettings:
    """Kernels and programs of steps, and what steps can do beside writing tokens."""

    attention_backend: str
    disable_cascade_attn: bool
    pack_weights: Literal["auto", False]
    strict: bool
    enforce_eager: bool
    deterministic: bool
    compilation: Mapping[str, Any]
    warm_up: WarmUp
    max_logprobs: int
    logprobs_mode: Literal["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"]
    logits_processors: Sequence[Any] | None
    enable_prompt_embeds: bool
    enable_sleep_mode: bool
    enable_return_routed_experts: bool


@dataclass(frozen=True)
class MediaSettings:
    """Media in prompts: limits per kind, preprocessing, allowed sources."""

    limit_mm_per_prompt: Mapping[str, Any] | None
    mm_processor_kwargs: Mapping[str, Any] | None
    mm_encoder_tp_mode: str
    allowed_local_media_path: str | Path
    allowed_media_domains: Sequence[str] | None


@dataclass(frozen=True)
class WatchSettings:
    """Settings of progress display and of the flight recorder."""

    show_progress: bool | None
    flight_recorder: str | Path | None
    flight_recorder_steps: int
    recorded: Mapping[str, Any]


@dataclass(frozen=True)
class Groups:
    """All groups, for code that reads several."""

    model: ModelSettings
    parallel: ParallelSettings
    cache: CacheSettings
    schedule: ScheduleSettings
    steps: StepSettings
    media: MediaSettings
    watch: WatchSettings
    adapters: AdapterLimits | None  # None: no request has any

    def in_use(self, *names: str) -> dict[str, bool]:
        """For refusals of combinations: the features in `names` -> whether each is on.

        Keys are worded as in messages ("strict=True"). `executor` is on if its workers are other
        processes.
        """
        steps, parallel = self.steps, self.parallel
        words = {
            "executor": f"executor={parallel.executor!r}",
            "data_parallel_backend": f"data_parallel_backend={parallel.data_parallel_backend!r}",
            "num_scheduler_steps": f"num_scheduler_steps={self.schedule.num_scheduler_steps}",
            "strict": "strict=True",
            "deterministic": "deterministic=True",
        }
        used = {
            "executor": parallel.executor not in ("auto", "local"),
            "data_parallel_backend": parallel.data_parallel_backend != "local",
            "num_scheduler_steps": self.schedule.num_scheduler_steps > 1,
            "speculative_config": self.schedule.drafts is not None,
            "strict": steps.strict,
            "deterministic": steps.deterministic,
            "enable_lora": self.adapters is not None,
            "enable_prompt_embeds": steps.enable_prompt_embeds,
            "enable_sleep_mode": steps.enable_sleep_mode,
            "enable_expert_parallel": parallel.enable_expert_parallel,
            "enable_return_routed_experts": steps.enable_return_routed_experts,
            "joint_replicas": parallel.joint_replicas,
            "decode_context_parallel_size": parallel.decode_context_parallel_size > 1,
        }
        return {words.get(name, name): used[name] for name in names}


def groups_of(settings: object, adapters: AdapterLimits | None) -> Groups:
    """Copy the attributes of `settings` into groups, field by field of the same name."""
    kinds = {name: kind for name, kind in get_type_hints(Groups).items() if name != "adapters"}
    made = {
        name: kind(**{one.name: getattr(settings, one.name) for one in fields(kind)})
        for name, kind in kinds.items()
    }
    return Groups(**made, adapters=adapters)
