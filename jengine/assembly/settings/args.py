"""EngineArgs: the list of an engine's settings. No jax.

Names and defaults follow vLLM. vLLM's other names are in vllm_args.py, so that the error for one
of them can say what to use instead. `checked_args` checks values, `derived_values` has what follows
from several settings, and `command_line` makes flags.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from jengine.adapters import AdapterLimits
from jengine.assembly.settings import command_line, derived_values
from jengine.assembly.settings.checked_args import check_args
from jengine.assembly.settings.nodes import Nodes
from jengine.assembly.settings.ranks import Ranks
from jengine.assembly.settings.vllm_args import own_settings
from jengine.config import BalanceConfig
from jengine.connectors.kv_events import EventSettings
from jengine.connectors.settings import TransferSettings
from jengine.connectors.weight_settings import WeightSettings
from jengine.errors import unknown_argument
from jengine.hub.options import HubOptions

T = TypeVar("T")


def takes_settings(cls: type[T]) -> type[T]:
    """Make a dataclass take settings by vLLM's names too, and refuse unknown ones by name."""
    original = cls.__init__

    @functools.wraps(original)
    def checked(self: Any, *args: Any, **given: Any) -> None:
        original(self, *args, **known_settings("EngineArgs", given))

    cls.__init__ = checked  # type: ignore[method-assign]
    return cls


def known_settings(owner: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in EngineArgs' own names; an unknown or unbuilt name is refused by name."""
    known = [item.name for item in fields(EngineArgs)]
    settings = own_settings(owner, given)
    for name in settings:
        if name not in known:
            raise unknown_argument(owner, name, known)
    return settings


@takes_settings
@dataclass
class EngineArgs:
    """All settings of an engine. None means the default, or a value that suits the model and the
    device."""

    # A folder, "demo", org/name of the Hugging Face Hub (org/name:Q4_K_M for one of several GGUF
    # files), or a flax.nnx module with its parameters. A folder of that name wins.
    model: Any
    _: KW_ONLY
    # Of repositories: branch, tag or commit; that of another tokenizer; the folder of the download
    # cache (None: Hugging Face's own); a token (None, True: HF_TOKEN or that of `hf auth login`,
    # False: none); and patterns of files that are left out.
    revision: str | None = None
    tokenizer_revision: str | None = None
    download_dir: str | Path | None = None
    hf_token: str | Literal[True, False] | None = field(default=None, repr=False)
    ignore_patterns: Sequence[str] | None = None
    # What the model is for: to write, or to make vectors and scores of prompts (embeddings,
    # classes, rewards). auto: by its class and files. `convert` makes a model that writes one that
    # embeds or classifies; `task` is vLLM's older name for both.
    runner: Literal["auto", "generate", "pooling"] = "auto"
    convert: Literal["auto", "none", "embed", "classify"] = "auto"
    task: str | None = None
    # A PoolerConfig, or a dict of its fields: how hidden states are pooled.
    pooler_config: Any = None
    # Entries that replace those of config.json.
    hf_overrides: Mapping[str, Any] | None = None
    # Parameters in place of the folder's: a module, an nnx.State or a tree of arrays.
    params: Any = None
    tokenizer: Any = None
    skip_tokenizer_init: bool = False
    trust_remote_code: bool = False
    # A template's text, or the file that holds it.
    chat_template: str | Path | None = None
    dtype: Any = "auto"
    # "int8", "int4" or "fp8": round the weights of a plain model as they are loaded or updated.
    # "int8_with_head", "int4_with_head": the output head too, to int8.
    # None: what config.json says. The name of a quantized checkpoint's format is accepted.
    quantization: str | None = None
    # What keys and values are stored as. auto: the model's dtype. "int8" or "fp8": one byte each,
    # with a scale for each head of a token, which is half the memory of bfloat16.
    kv_cache_dtype: str = "auto"
    # The devices that the model is split over: how many share each layer, in how many stages of
    # layers, or a jax.sharding.Mesh made by the caller, whose axis "pp" is that of the stages.
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    # Among how many of the devices that share a layer the cached tokens of each request are
    # divided, by blocks of block_size tokens. Where there are more devices than KV heads, they
    # would else hold copies. The engine's blocks are then so many times as long.
    decode_context_parallel_size: int = 1
    # Into so many parts the tokens of each step are divided, prompts above all: as many times as
    # many devices share each layer, and each part of them has all weights and the whole cache.
    prefill_context_parallel_size: int = 1
    # Replicas of the model, each with its own devices: the axis "dp" of a mesh. Limits of requests
    # and memory hold for each replica.
    data_parallel_size: int | None = None
    # Where replicas run: all in one process, or each in a core process of its own ("mp" means the
    # same), so that one that dies takes only its own requests. "ray": on the nodes of a cluster.
    data_parallel_backend: Literal["local", "process", "mp", "ray"] = "local"
    # For Ray: see RayOptions.
    data_parallel_options: Mapping[str, Any] | None = None
    # Replicas on several hosts, each in a core process: how many of them run on this one, the rank
    # of its first, and the address and port of the host with the front, where the others join.
    # They share a secret, which also encrypts what they send.
    data_parallel_size_local: int | None = None
    data_parallel_start_rank: int | None = None
    data_parallel_address: str | None = None
    data_parallel_rpc_port: int = 29550
    data_parallel_secret: str | None = field(default=None, repr=False)
    # Mixtures of experts: whether a device has some experts whole, instead of a part of each.
    enable_expert_parallel: bool = False
    # Whether the devices then exchange sums of all tokens, or send each token to those that have
    # its experts.
    all2all_backend: Literal["allgather_reducescatter", "all_to_all"] = "allgather_reducescatter"
    # Whether data-parallel replicas run each step together, as one program: then whole experts are
    # spread over the devices of all of them, instead of over each one's own.
    joint_replicas: bool = False
    # Whether experts move between these devices, and some are on several, so that loads are equal:
    # {"num_redundant_experts": 8, "window_size": 1000, "step_interval": 3000}.
    enable_eplb: bool = False
    eplb_config: Mapping[str, Any] | None = None
    # Whether outputs have the experts that each token picked (`routed_experts`).
    enable_return_routed_experts: bool = False
    # A mesh of the program's own, and the roles of its axes, {"data": "replica"}: also "tensor",
    # "stage", and "first", where the engine has the first devices alone, and arrays are gathered.
    # By default layers are sharded over all axes but those called data, fsdp, dp, batch or replica,
    # which are replicas if there are others.
    mesh: Any = None
    mesh_axes: Mapping[str, Any] | None = None
    # The nodes that one engine runs on, each with one process: how many there are, which one this
    # is, and the address and port of node 0, where all meet. Node 0 alone has requests.
    nnodes: int = 1
    node_rank: int = 0
    master_addr: str = "127.0.0.1"
    master_port: int = 29501
    # How the processes of one mesh work together: see MultihostSettings.
    multihost: Mapping[str, Any] | None = None
    # What runs the steps: "auto", "local", "multihost", "ray", or "package.module:Class".
    executor: str = "auto"
    executor_options: Mapping[str, Any] | None = None
    # Whether scheduler and steps run in a process of their own, beside the one of the requests.
    multiprocess: bool = False
    # "peer": from an engine that runs; the folder need not hold weights then.
    load_format: Literal["auto", "safetensors", "orbax", "dummy", "peer"] = "auto"
    # Where this engine serves its weights, or which one it takes them from:
    # {"serve": "host:port"} or {"peer": "host:port"}, with the same secret.
    model_loader_extra_config: Mapping[str, Any] | None = None
    # "generic": an architecture without a family is read as its tensors and config.json show.
    model_impl: Literal["auto", "generic"] = "auto"
    # For requests without a seed; None: 0. An engine with a seed waits until every program is
    # compiled where programs round differently, so that the same script gives the same answers.
    seed: int | None = None
    # Sizes may also be given as text: "4096", "32k" (32,000) or "32K" (32,768).
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    # Tokens of one block of the KV cache.
    block_size: int | None = None
    # Blocks of each cache group, whatever memory there is.
    num_gpu_blocks_override: int | None = None
    gpu_memory_utilization: float = 0.92
    kv_cache_memory_bytes: int | None = None
    # GiB of weights that each accelerator is spared: so many layers stay in the host's memory, and
    # are copied to the device in every step, each while those before it compute.
    cpu_offload_gb: float = 0
    enable_prefix_caching: bool = True
    # GiB of the host's memory for blocks that leave the device, by replica; and connectors that
    # keep blocks further away, by vLLM's keys: see `connectors.settings`.
    kv_offloading_size: float | None = None
    kv_offloading_backend: str = "native"
    kv_transfer_config: Mapping[str, Any] | None = None
    # Tells routers outside which blocks are cached, by vLLM's keys: see `connectors.kv_events`.
    kv_events_config: Mapping[str, Any] | None = None
    # Recurrent layers: every how many tokens a copy of their state stays for prompts that begin
    # alike; "none" keeps no copies. States are float32, whatever the model's dtype.
    mamba_block_size: int | None = None
    mamba_cache_mode: Literal["none", "align"] = "align"
    mamba_cache_dtype: Literal["auto", "float32"] = "auto"
    mamba_ssm_cache_dtype: Literal["auto", "float32"] = "auto"
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    # "fcfs", "priority", or "package.module:Class" of an order of your own: `scheduler.orders`.
    scheduling_policy: str = "fcfs"
    overlap: bool = True
    # Decode steps that the device may run in one call while no request waits for a row.
    num_scheduler_steps: int = 1
    # Speculative decoding, by vLLM's keys: {"method": "ngram", "num_speculative_tokens": 4}.
    speculative_config: Mapping[str, Any] | None = None
    # LoRA adapters: how many a step may use at once, the largest rank, how many the host keeps in
    # memory while no request uses them (None: as many as a step), the dtype of their matrices
    # (auto: the model's), and which modules may be adapted (None: all linear ones).
    enable_lora: bool = False
    max_loras: int = 1
    max_lora_rank: int = 16
    max_cpu_loras: int | None = None
    lora_dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    lora_target_modules: Sequence[str] | None = None
    # auto: Triton kernels on NVIDIA GPUs, C++ kernels on CPUs, XLA everywhere else.
    attention_backend: Literal["auto", "xla", "cpu", "triton"] = "auto"
    # Whether each decode reads its whole context alone, where kernels on GPUs would read leading
    # blocks that several decodes share once for some of them.
    disable_cascade_attn: bool = False
    # auto: the C++ kernels multiply with packed copies of the weights. False: with the arrays
    # themselves, with the same results in about twice the time.
    pack_weights: Literal["auto", False] = "auto"
    # Whether prompts may be given as embeddings, {"prompt_embeds": array [tokens, hidden]}.
    enable_prompt_embeds: bool = False
    # Most images of a prompt, {"image": 4}, and what their preprocessing changes in the model's own
    # preprocessor_config.json, {"max_pixels": 500000}.
    limit_mm_per_prompt: Mapping[str, Any] | None = None
    mm_processor_kwargs: Mapping[str, Any] | None = None
    # What devices that share a model do with images: each has some of the heads and columns of the
    # vision tower ("weights"), or the whole tower, and encodes some of the images ("data").
    mm_encoder_tp_mode: Literal["weights", "data"] = "weights"
    # What URLs of images in chat messages may lead to, besides data: URLs: files of this folder
    # ("": none), and these hosts over http and https (None: none).
    allowed_local_media_path: str | Path = ""
    allowed_media_domains: Sequence[str] | None = None
    # Whether sleep() may take memory from the engine until wake_up().
    enable_sleep_mode: bool = False
    enforce_eager: bool = False
    strict: bool = False
    # Bitwise equal tokens and log-probabilities in any batch, whether generated or scored.
    # Free with the CPU's own kernels, slower elsewhere.
    deterministic: bool = False
    compilation_config: Mapping[str, Any] | None = None
    generation_config: Literal["auto", "default", "vllm"] = "auto"
    # Replaces single entries of the model's generation_config.json.
    override_generation_config: Mapping[str, Any] | None = None
    # How the model marks its reasoning: grammars of answers begin after it.
    reasoning_parser: str | None = None
    structured_outputs_config: Mapping[str, Any] | None = None
    # What begins reasoning, and what ends it where a request's thinking_token_budget is spent; by
    # default as the reasoning parser has them.
    reasoning_config: Mapping[str, str] | None = None
    # JAX functions f(logits) or f(ids, logits) that run in the steps of all requests, classes of
    # `LogitsProcessor` that run on the host, or their names, as package.module:name.
    logits_processors: Sequence[Any] | None = None
    max_logprobs: int = 20
    logprobs_mode: Literal[
        "raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"
    ] = "raw_logprobs"
    disable_log_stats: bool = True
    # Measure how long blocks stay in the KV cache, of this share of them.
    kv_cache_metrics: bool = False
    kv_cache_metrics_sample: float = 0.01
    # Where spans of requests go: a collector that takes OTLP over HTTP. Needs the extra `otel`.
    otlp_traces_endpoint: str | None = None
    show_progress: bool | None = None
    # A folder: the last steps are kept in memory, and written there when a step fails or with
    # llm.write_recording(). `jengine replay` runs them again. They hold prompts and answers.
    flight_recorder: str | Path | None = None
    flight_recorder_steps: int = 1024
    # Where start_profile() writes: {"profiler": "jax", "dir": folder}.
    profiler_config: Mapping[str, Any] | None = None

    @classmethod
    def checked(cls, owner: str, model: Any, **given: Any) -> EngineArgs:
        """EngineArgs from keyword arguments; errors name the owner of the arguments."""
        return cls(model, **known_settings(owner, given))

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Add a flag for each setting to a parser of the user's own.

        What is not given stays absent, so `LLM(**vars(parser.parse_args()))` takes the defaults.
        """
        return command_line.add_engine_flags(parser, EngineArgs)

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> EngineArgs:
        """EngineArgs from parsed flags. Names that are no settings are left to the program."""
        return cls(**command_line.given_settings(args, cls))

    def __post_init__(self) -> None:
        check_args(self)

    @property
    def nodes(self) -> Nodes:
        """The nodes that run the steps of one replica."""
        return derived_values.nodes(self)

    @property
    def hub(self) -> HubOptions:
        """How repositories of the Hugging Face Hub are asked for."""
        return derived_values.hub_options(self)

    @property
    def adapter_limits(self) -> AdapterLimits | None:
        """How many LoRA adapters there may be, and how large; None: no request has any."""
        return derived_values.adapter_limits(self)

    @property
    def replicas_in_processes(self) -> bool:
        """Whether there are several replicas, each in a process of its own."""
        return derived_values.replicas_in_processes(self)

    @property
    def devices_per_replica(self) -> int:
        """How many devices each replica takes, as far as settings tell."""
        return derived_values.devices_per_replica(self)

    @property
    def ranks(self) -> Ranks:
        """The data-parallel ranks, here and on other hosts."""
        return derived_values.ranks(self)

    @property
    def kv_events(self) -> EventSettings | None:
        """Where it is published which blocks are cached; None: nowhere."""
        return derived_values.kv_events(self)

    @property
    def transfers(self) -> TransferSettings | None:
        """Where blocks of the cache are kept outside of the device; None: nowhere."""
        return derived_values.transfers(self)

    @property
    def weight_settings(self) -> WeightSettings | None:
        """Weights that are served to other engines or taken from one; None: neither."""
        return derived_values.shared_weights(self)

    @property
    def expert_balance(self) -> BalanceConfig | None:
        """How experts move between devices; None: they do not."""
        return derived_values.expert_balance(self)

    @property
    def measured_blocks(self) -> float:
        """The share of KV cache blocks whose stay is measured."""
        return derived_values.measured_blocks(self)

    @property
    def cache_codes(self) -> str | None:
        """What the KV cache holds in place of the model's dtype."""
        return derived_values.cache_codes(self)

    @property
    def profile_folder(self) -> str | None:
        """Where traces are written; None if profiler_config names no folder."""
        return derived_values.profile_folder(self)

    @property
    def wait_for(self) -> str:
        """Which programs are compiled before requests are admitted, as far as settings tell."""
        return self.wait_where(same_bits=False)

    def wait_where(self, *, same_bits: bool) -> str:
        """`wait_for` of an engine all of whose programs give a row the same bits, or not."""
        return derived_values.warm_up(self).wait_for(same_bits=same_bits)
