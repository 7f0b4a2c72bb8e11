"""Settings of memory: where weights come from, lengths, blocks and offloading. No jax."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from jengine.assembly.settings.checked_args import check_offload
from jengine.assembly.settings.setting import Setting
from jengine.assembly.settings.values import share
from jengine.connectors.kv_events import EventSettings, event_settings
from jengine.connectors.settings import TransferSettings, transfer_settings
from jengine.connectors.weight_settings import WeightSettings, weight_settings


@dataclass(kw_only=True)
class MemoryArgs:
    """Loading of weights, and the memory of weights and KV cache."""

    load_format: Annotated[Literal["auto", "safetensors", "orbax", "dummy", "peer"], Setting(
        "where weights come from; auto: what the folder holds, dummy: at random, peer: from an "
        "engine that runs", recorded=True, commands="compare doctor pull"
    )] = "auto"  # fmt: skip
    # {"serve": "host:port"} or {"peer": "host:port"}, with a common secret.
    model_loader_extra_config: Annotated[Mapping[str, Any] | None, Setting(
        "JSON, or --model-loader-extra-config.KEY VALUE: weights that engines take from each "
        "other; keys: serve, peer, secret, readers, timeout_seconds"
    )] = None  # fmt: skip
    model_impl: Annotated[Literal["auto", "generic"], Setting(
        "generic: read an unknown architecture as its tensors show",
        recorded=True, commands="compare doctor"
    )] = "auto"  # fmt: skip
    # Default seed of requests; None: 0. With a seed, engines wait until every program is compiled
    # if programs round differently, so that a script is reproducible.
    seed: Annotated[int | None, Setting(
        "seed of sampling and of dummy weights", recorded=True, commands="compare"
    )] = None  # fmt: skip
    max_model_len: Annotated[int | None, Setting(
        "longest prompt and answer together, in tokens", size=True, commands="doctor plan simulate"
    )] = None  # fmt: skip
    max_num_seqs: Annotated[int | None, Setting(
        "most requests that run at once", size=True, commands="compare doctor simulate"
    )] = None  # fmt: skip
    max_num_batched_tokens: Annotated[int | None, Setting(
        "most tokens of one step", size=True, commands="compare doctor plan simulate"
    )] = None  # fmt: skip
    block_size: Annotated[int | None, Setting(
        "tokens of one cache block", size=True, commands="compare doctor plan simulate"
    )] = None  # fmt: skip
    num_gpu_blocks_override: Annotated[int | None, Setting(
        "blocks of each cache group, whatever memory there is", size=True
    )] = None  # fmt: skip
    gpu_memory_utilization: Annotated[float, Setting(
        "share of the accelerator's memory to use", commands="compare doctor plan simulate",
        renamed="memory_utilization", check=partial(share, "gpu_memory_utilization")
    )] = 0.92  # fmt: skip
    kv_cache_memory_bytes: Annotated[int | None, Setting(
        "bytes of the cache, for example 2G", size=True, commands="compare doctor"
    )] = None  # fmt: skip
    cpu_offload_gb: Annotated[float, Setting(
        "GiB of weights of each accelerator that stay in the host's memory and are copied to it "
        "in every step", commands="plan", check=check_offload
    )] = 0  # fmt: skip
    enable_prefix_caching: Annotated[bool, Setting(
        "do not reuse the cache of prompts that begin alike", commands="simulate"
    )] = True  # fmt: skip
    kv_offloading_size: Annotated[float | None, Setting(
        "GiB of the host's memory for cache blocks that leave the device"
    )] = None  # fmt: skip
    kv_offloading_backend: Annotated[str, Setting("native: jengine's own")] = "native"
    kv_transfer_config: Annotated[Mapping[str, Any] | None, Setting(
        "JSON, or --kv-transfer-config.KEY VALUE: a connector that keeps cache blocks further "
        "away, by vLLM's keys"
    )] = None  # fmt: skip
    kv_events_config: Annotated[Mapping[str, Any] | None, Setting(
        "JSON, or --kv-events-config.KEY VALUE: publish which blocks are cached, by vLLM's keys"
    )] = None  # fmt: skip
    mamba_block_size: Annotated[int | None, Setting(
        "recurrent layers: tokens between kept copies of their state", size=True
    )] = None  # fmt: skip
    mamba_cache_mode: Annotated[Literal["none", "align"], Setting(
        "recurrent layers: keep copies of their state for prompts that begin alike, or none"
    )] = "align"  # fmt: skip
    # Recurrent states are float32 in any model dtype.
    mamba_cache_dtype: Annotated[Literal["auto", "float32"], Setting(
        "type of what convolutions keep of the last tokens"
    )] = "auto"  # fmt: skip
    mamba_ssm_cache_dtype: Annotated[Literal["auto", "float32"], Setting(
        "type of other recurrent states"
    )] = "auto"  # fmt: skip

    @property
    def weight_settings(self) -> WeightSettings | None:
        """Weight transfer between engines: where to serve or fetch; None: neither."""
        return weight_settings(self.load_format, self.model_loader_extra_config)

    @property
    def transfers(self) -> TransferSettings | None:
        """Parsed settings of offloading and KV transfer; None if blocks stay on the device."""
        return transfer_settings(
            self.kv_offloading_size, self.kv_offloading_backend, self.kv_transfer_config
        )

    @property
    def kv_events(self) -> EventSettings | None:
        """Parsed `kv_events_config`; None if KV events are not published."""
        return event_settings(self.kv_events_config)


@dataclass(frozen=True)
class CacheSettings:
    """Memory of weights and KV cache, and offloading of blocks."""

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
