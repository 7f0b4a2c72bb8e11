"""EngineArgs: the table of an engine's settings, and what follows from several of them. No jax.

Names and defaults follow vLLM. vLLM's other names are in vllm_args.py, so that the error for one
of them can say what to use instead. Rooms do not take EngineArgs but the structs of `groups`.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from jengine.adapters import AdapterLimits
from jengine.assembly.settings.adapter_settings import adapter_limits
from jengine.assembly.settings.checked_args import (
    check_args,
    check_offload,
    check_profiler,
)
from jengine.assembly.settings.dict_settings import COMPILATION_KEYS
from jengine.assembly.settings.expert_settings import balance_config
from jengine.assembly.settings.flags import add_field_flags
from jengine.assembly.settings.groups import Groups, groups_of
from jengine.assembly.settings.nodes import Nodes
from jengine.assembly.settings.pooling_settings import checked_overrides, checked_pooler_config
from jengine.assembly.settings.ranks import Ranks
from jengine.assembly.settings.reasoning_settings import KEYS as REASONING_KEYS
from jengine.assembly.settings.setting import (
    ALL,
    CHECK,
    CORE,
    HIDDEN,
    RANK,
    SERVER,
    WORKER,
    Setting,
    declared,
)
from jengine.assembly.settings.structured_settings import KEYS as STRUCTURED_OUTPUTS_KEYS
from jengine.assembly.settings.values import (
    count_or_all,
    engine_functions,
    one_of,
    share,
    template_text,
)
from jengine.assembly.settings.vllm_args import PARTS, VLLM_SETTINGS, own_settings
from jengine.assembly.settings.warm_up import WarmUp
from jengine.config import CACHE_CODES, BalanceConfig, SpeculativeConfig
from jengine.connectors.kv_events import EventSettings, event_settings
from jengine.connectors.settings import TransferSettings, transfer_settings
from jengine.connectors.weight_settings import WeightSettings, weight_settings
from jengine.errors import ConfigError, unknown_argument
from jengine.executor.choice import checked_executor
from jengine.hub.options import HubOptions
from jengine.scheduler.orders import order_of
from jengine.speculative.config import speculative_config

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
    settings = own_settings(owner, given, RENAMED)
    for name in settings:
        if name not in SETTINGS:
            raise unknown_argument(owner, name, list(SETTINGS))
    return settings


@takes_settings
@dataclass
class EngineArgs:
    """All settings of an engine. None means the default, or a value that suits the model and the
    device."""

    # A folder, "demo", org/name of the Hugging Face Hub (org/name:Q4_K_M for one of several GGUF
    # files), or a flax.nnx module with its parameters. A folder of that name wins.
    model: Annotated[Any, Setting(kept_from=ALL)]
    _: KW_ONLY
    revision: Annotated[str | None, Setting(
        "of a repository of the Hugging Face Hub: branch, tag or commit [main]", commands="pull"
    )] = None  # fmt: skip
    tokenizer_revision: Annotated[str | None, Setting("that of the tokenizer [the model's]")] = None
    download_dir: Annotated[str | Path | None, Setting(
        "folder of the download cache [Hugging Face's own, see HF_HOME]", commands="pull"
    )] = None  # fmt: skip
    # None or True: HF_TOKEN, or that of `hf auth login`; False: none.
    hf_token: Annotated[str | Literal[True, False] | None, Setting(
        "token for gated and private repositories [HF_TOKEN, which ps does not show]",
        commands="pull", kept_from=CORE | WORKER | CHECK
    )] = field(default=None, repr=False)  # fmt: skip
    ignore_patterns: Annotated[Sequence[str] | None, Setting(
        "files of a repository that are left out, as patterns with *", commands="pull"
    )] = None  # fmt: skip
    runner: Annotated[Literal["auto", "generate", "pooling"], Setting(
        "what the model is for: generate, pooling, or auto (by its files)"
    )] = "auto"  # fmt: skip
    convert: Annotated[Literal["auto", "none", "embed", "classify"], Setting(
        "make a model that writes one that makes embeddings or classes: embed, classify"
    )] = "auto"  # fmt: skip
    # vLLM's older name for `runner` and `convert`.
    task: Annotated[str | None, Setting(HIDDEN)] = None
    # A PoolerConfig, or a dict of its fields: how hidden states are pooled.
    pooler_config: Annotated[Any, Setting(
        "JSON with the fields of PoolerConfig, or --pooler-config.KEY VALUE",
        final=checked_pooler_config
    )] = None  # fmt: skip
    hf_overrides: Annotated[Mapping[str, Any] | None, Setting(
        "JSON: entries that replace those of config.json", final=checked_overrides
    )] = None  # fmt: skip
    # Parameters in place of the folder's: a module, an nnx.State or a tree of arrays.
    params: Annotated[Any, Setting(kept_from=ALL)] = None
    tokenizer: Annotated[Any, Setting(
        "folder or org/name of the tokenizer, if it is not the model's",
        commands="compare doctor", kept_from=CORE | WORKER | RANK | CHECK
    )] = None  # fmt: skip
    skip_tokenizer_init: Annotated[bool, Setting(kept_from=WORKER)] = False
    chat_template: Annotated[str | Path | None, Setting(
        "file or text of a chat template, if it is not the tokenizer's",
        kept_from=CORE | WORKER | RANK, final=partial(template_text, "chat_template")
    )] = None  # fmt: skip
    dtype: Annotated[Any, Setting(
        "type of weights and cache: auto, float32, bfloat16, float16",
        commands="compare doctor plan simulate", kept_from=WORKER
    )] = "auto"  # fmt: skip
    # *_with_head: the output head too, to int8. None: what config.json says. The name of a
    # quantized checkpoint's format is accepted.
    quantization: Annotated[str | None, Setting(
        "round weights as they are loaded: int8, int4, fp8, int8_with_head, ...",
        short="-q", recorded=True, commands="compare doctor plan simulate"
    )] = None  # fmt: skip
    # int8 and fp8: one byte each, with a scale for each head of a token.
    kv_cache_dtype: Annotated[str, Setting(
        "what keys and values are stored as: auto (the model's dtype), int8, fp8",
        recorded=True, commands="compare doctor plan simulate",
        check=partial(one_of, "kv_cache_dtype", choices=tuple(CACHE_CODES))
    )] = "auto"  # fmt: skip
    tensor_parallel_size: Annotated[int | None, Setting(
        "devices to split each layer over",
        short="-tp", size=True, recorded=True, commands="compare"
    )] = None  # fmt: skip
    pipeline_parallel_size: Annotated[int | None, Setting(
        "stages of layers, each on separate devices", short="-pp", size=True, recorded=True
    )] = None  # fmt: skip
    # The engine's blocks are so many times as long.
    decode_context_parallel_size: Annotated[int, Setting(
        "devices of one KV head that divide the cached tokens of each request among them, "
        "instead of holding copies", short="-dcp", size=True
    )] = 1  # fmt: skip
    prefill_context_parallel_size: Annotated[int, Setting(
        "groups of devices, each with all weights, that divide the tokens of each step among "
        "them", short="-pcp", size=True
    )] = 1  # fmt: skip
    # Limits of requests and memory hold for each replica.
    data_parallel_size: Annotated[int | None, Setting(
        "copies of the model, each on separate devices", short="-dp", size=True
    )] = None  # fmt: skip
    # "mp" means "process". A replica in a process takes only its own requests along if it dies.
    data_parallel_backend: Annotated[Literal["local", "process", "mp", "ray"], Setting(
        "local: copies run in one process; process (serve): each in its own; ray: on the nodes "
        "of a Ray cluster", short="-dpb", kept_from=CORE | WORKER
    )] = "local"  # fmt: skip
    data_parallel_options: Annotated[Mapping[str, Any] | None, Setting(
        "JSON, or --data-parallel-options.KEY VALUE; keys, for ray: address, cpus, gpus, "
        "environment, start, stop", kept_from=CORE | RANK
    )] = None  # fmt: skip
    data_parallel_size_local: Annotated[int | None, Setting(
        "copies of the model on this host; the others join from theirs",
        short="-dpl", kept_from=CORE
    )] = None  # fmt: skip
    data_parallel_start_rank: Annotated[int | None, Setting(
        "with --headless: the number of this host's first copy", short="-dpr", kept_from=CORE
    )] = None  # fmt: skip
    data_parallel_address: Annotated[str | None, Setting(
        "address of the host with the front, where copies on others join",
        short="-dpa", kept_from=CORE
    )] = None  # fmt: skip
    data_parallel_rpc_port: Annotated[int, Setting(
        "port there", short="-dpp", kept_from=CORE
    )] = 29550  # fmt: skip
    # What the hosts share; it also encrypts what they send.
    data_parallel_secret: Annotated[str | None, Setting(
        kept_from=CORE
    )] = field(default=None, repr=False)  # fmt: skip
    enable_expert_parallel: Annotated[bool, Setting(
        "give each of these devices some experts whole, not a part of each",
        short="-ep", recorded=True
    )] = False  # fmt: skip
    all2all_backend: Annotated[Literal["allgather_reducescatter", "all_to_all"], Setting(
        "whether devices with whole experts exchange sums of all tokens "
        "(allgather_reducescatter) or send tokens to their experts (all_to_all)", recorded=True
    )] = "allgather_reducescatter"  # fmt: skip
    joint_replicas: Annotated[bool, Setting(
        "replicas run each step together, with experts spread over all their devices"
    )] = False  # fmt: skip
    enable_eplb: Annotated[bool, Setting(
        "move experts between devices so that their loads are equal"
    )] = False  # fmt: skip
    # {"num_redundant_experts": 8, "window_size": 1000, "step_interval": 3000}
    eplb_config: Annotated[Mapping[str, Any] | None, Setting(
        "JSON, or --eplb-config.KEY VALUE; keys: num_redundant_experts, window_size, "
        "step_interval, log_balancedness"
    )] = None  # fmt: skip
    enable_return_routed_experts: Annotated[bool, Setting(
        "return the experts that each token picked"
    )] = False  # fmt: skip
    # A jax.sharding.Mesh of the program's own ("pp" are its stages), and the roles of its axes,
    # {"data": "replica"}: also "tensor", "stage", and "first", where the engine has the first
    # devices alone, and arrays are gathered.
    # By default layers are sharded over all axes but those called data, fsdp, dp, batch or replica,
    # which are replicas if there are others.
    mesh: Annotated[Any, Setting(kept_from=ALL)] = None
    mesh_axes: Mapping[str, Any] | None = None
    # One process on each node. Node 0 alone has requests.
    nnodes: Annotated[int, Setting(
        "nodes that the model is split over; node 0 has the API, the others --headless",
        short="-n", kept_from=WORKER
    )] = 1  # fmt: skip
    node_rank: Annotated[int, Setting("the number of this node", short="-r", kept_from=WORKER)] = 0
    master_addr: Annotated[str, Setting(
        "address of node 0, where the others meet it", kept_from=WORKER
    )] = "127.0.0.1"  # fmt: skip
    master_port: Annotated[int, Setting("port there", kept_from=WORKER)] = 29501
    multihost: Annotated[Mapping[str, Any] | None, Setting(
        "JSON, or --multihost.KEY VALUE: how long nodes wait for one another; keys: address, "
        "meet, silence, stuck, compare_every", kept_from=WORKER
    )] = None  # fmt: skip
    executor: Annotated[str, Setting(
        "what runs the steps: auto, local, multihost, ray, or package.module:Class",
        kept_from=WORKER, check=checked_executor
    )] = "auto"  # fmt: skip
    executor_options: Annotated[Mapping[str, Any] | None, Setting(
        "JSON, or --executor-options.KEY VALUE; the executor knows the keys", kept_from=WORKER
    )] = None  # fmt: skip
    # Whether scheduler and steps run in a process of their own, beside the one of the requests.
    multiprocess: Annotated[bool, Setting(kept_from=CORE | WORKER | RANK)] = False
    load_format: Annotated[Literal["auto", "safetensors", "orbax", "dummy", "peer"], Setting(
        "where weights come from; auto: what the folder holds, dummy: at random, peer: from an "
        "engine that runs", recorded=True, commands="compare doctor pull"
    )] = "auto"  # fmt: skip
    # {"serve": "host:port"} or {"peer": "host:port"}, with the same secret.
    model_loader_extra_config: Annotated[Mapping[str, Any] | None, Setting(
        "JSON, or --model-loader-extra-config.KEY VALUE: weights that engines take from each "
        "other; keys: serve, peer, secret, readers, timeout_seconds"
    )] = None  # fmt: skip
    model_impl: Annotated[Literal["auto", "generic"], Setting(
        "generic: read an unknown architecture as its tensors show",
        recorded=True, commands="compare doctor"
    )] = "auto"  # fmt: skip
    # For requests without a seed; None: 0. An engine with a seed waits until every program is
    # compiled where programs round differently, so that the same script gives the same answers.
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
    # States are float32, whatever the model's dtype.
    mamba_cache_dtype: Annotated[Literal["auto", "float32"], Setting(
        "type of what convolutions keep of the last tokens"
    )] = "auto"  # fmt: skip
    mamba_ssm_cache_dtype: Annotated[Literal["auto", "float32"], Setting(
        "type of other recurrent states"
    )] = "auto"  # fmt: skip
    enable_chunked_prefill: Annotated[bool, Setting(
        "run each prompt in one piece", recorded=True, commands="simulate"
    )] = True  # fmt: skip
    long_prefill_token_threshold: Annotated[int, Setting(
        "prompts longer than this are run in pieces of this size"
    )] = 0  # fmt: skip
    scheduling_policy: Annotated[str, Setting(
        "which request runs first: fcfs, priority, or package.module:Class", check=order_of
    )] = "fcfs"  # fmt: skip
    overlap: Annotated[bool, Setting(
        "end a step before the next is prepared", renamed="async_scheduling"
    )] = True  # fmt: skip
    num_scheduler_steps: Annotated[int, Setting(
        "decode steps in one call of the device while no request waits", recorded=True
    )] = 1  # fmt: skip
    # {"method": "ngram", "num_speculative_tokens": 4}
    speculative_config: Annotated[Mapping[str, Any] | None, Setting(
        "JSON with vLLM's keys, or --speculative-config.KEY VALUE: draft several tokens of a "
        "row for one step, with method ngram, suffix, draft_model, eagle, eagle3, medusa or mtp",
        short="-sc", recorded=True, check=speculative_config
    )] = None  # fmt: skip
    enable_lora: Annotated[bool, Setting(
        "answer requests with LoRA adapters, which are loaded while the engine runs"
    )] = False  # fmt: skip
    max_loras: Annotated[int, Setting("LoRA adapters that a step may use at once", size=True)] = 1
    max_lora_rank: Annotated[int, Setting("largest rank of a LoRA adapter", size=True)] = 16
    # None: as many as a step.
    max_cpu_loras: Annotated[int | None, Setting(
        "LoRA adapters kept in memory; the least recently used is dropped first", size=True
    )] = None  # fmt: skip
    lora_dtype: Annotated[Literal["auto", "float32", "bfloat16", "float16"], Setting(
        "type of adapters' matrices: auto (the model's), float32, bfloat16, float16"
    )] = "auto"  # fmt: skip
    lora_target_modules: Annotated[Sequence[str] | None, Setting(
        "modules that adapters may change, such as q_proj; all by default"
    )] = None  # fmt: skip
    attention_backend: Annotated[Literal["auto", "xla", "cpu", "triton", "fa4"], Setting(
        "the kernels; auto: Triton on NVIDIA GPUs, C++ on CPUs, else XLA; fa4: Triton, and "
        "FlashAttention-4 for prompts (jengine[fa4]), which auto is on 9.0", recorded=True
    )] = "auto"  # fmt: skip
    disable_cascade_attn: Annotated[bool, Setting(
        "read blocks that several decodes begin with anew for each, on GPUs", recorded=True
    )] = False  # fmt: skip
    # False: with the same results in about twice the time.
    pack_weights: Annotated[Literal["auto", False], Setting(
        "auto: copy weights into the form that CPU kernels read fastest; false: do not",
        recorded=True
    )] = "auto"  # fmt: skip
    # Whether prompts may be given as embeddings, {"prompt_embeds": array [tokens, hidden]}.
    enable_prompt_embeds: bool = False
    # {"image": 4}
    limit_mm_per_prompt: Annotated[Mapping[str, Any] | None, Setting(
        "most images of a prompt, for a model that takes some", renamed="language_model_only"
    )] = None  # fmt: skip
    # What changes in the model's own preprocessor_config.json: {"max_pixels": 500000}.
    mm_processor_kwargs: Annotated[Mapping[str, Any] | None, Setting(
        "settings of the preprocessing of images"
    )] = None  # fmt: skip
    mm_encoder_tp_mode: Annotated[Literal["weights", "data"], Setting(
        "whether devices share the weights of the vision tower, or its images", recorded=True
    )] = "weights"  # fmt: skip
    # "": none.
    allowed_local_media_path: Annotated[str | Path, Setting(
        "folder whose files may be named by file: URLs of images", kept_from=CORE | WORKER | RANK
    )] = ""  # fmt: skip
    allowed_media_domains: Annotated[Sequence[str] | None, Setting(
        "hosts from which images may be loaded over http and https", kept_from=CORE | WORKER | RANK
    )] = None  # fmt: skip
    enable_sleep_mode: Annotated[bool, Setting(
        "let /sleep free the memory of weights and cache until /wake_up"
    )] = False  # fmt: skip
    enforce_eager: Annotated[bool, Setting(
        "compile steps when they are first needed, not at the start"
    )] = False  # fmt: skip
    strict: Annotated[bool, Setting("make a compile after the start an error")] = False
    # Free with the CPU's own kernels.
    deterministic: Annotated[bool, Setting(
        "bitwise equal log-probabilities in any batch; slower where XLA multiplies",
        recorded=True, commands="compare doctor"
    )] = False  # fmt: skip
    compilation_config: Annotated[Mapping[str, Any] | None, Setting(
        "JSON, or --compilation-config.KEY VALUE; keys: " + ", ".join(COMPILATION_KEYS),
        short="-cc", recorded=True, commands="compare"
    )] = None  # fmt: skip
    generation_config: Annotated[Literal["auto", "default", "vllm"], Setting(
        "whether the model's generation_config.json sets sampling defaults", kept_from=WORKER
    )] = "auto"  # fmt: skip
    # Replaces single entries of the model's generation_config.json.
    override_generation_config: Mapping[str, Any] | None = None
    # How the model marks its reasoning: grammars of answers begin after it.
    reasoning_parser: Annotated[str | None, Setting(kept_from=CORE | WORKER)] = None
    structured_outputs_config: Annotated[Mapping[str, Any] | None, Setting(
        "JSON, or --structured-outputs-config.KEY VALUE; keys: "
        + ", ".join(STRUCTURED_OUTPUTS_KEYS), kept_from=CORE | WORKER
    )] = None  # fmt: skip
    reasoning_config: Annotated[Mapping[str, str] | None, Setting(
        "JSON, or --reasoning-config.KEY VALUE: the marks by which a request's "
        "thinking_token_budget ends its reasoning; keys: "
        + ", ".join(REASONING_KEYS), kept_from=CORE | WORKER
    )] = None  # fmt: skip
    # f(logits) or f(ids, logits), and classes of `LogitsProcessor`.
    logits_processors: Annotated[Sequence[Any] | None, Setting(
        "JAX functions that change logits, or classes of processors that run on the host, each "
        "as package.module:name",
        kept_from=CHECK, final=partial(engine_functions, "logits_processors")
    )] = None  # fmt: skip
    max_logprobs: Annotated[int, Setting(
        "most log-probabilities a request may ask for; -1: the vocabulary", recorded=True,
        check=partial(count_or_all, "max_logprobs")
    )] = 20  # fmt: skip
    logprobs_mode: Annotated[Literal[
        "raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"
    ], Setting(
        "what is returned as log-probabilities", recorded=True
    )] = "raw_logprobs"  # fmt: skip
    disable_log_stats: Annotated[bool, Setting(
        "log figures while running", kept_from=CORE | WORKER
    )] = True  # fmt: skip
    kv_cache_metrics: Annotated[bool, Setting(
        "measure how long blocks stay in the KV cache", kept_from=WORKER
    )] = False  # fmt: skip
    kv_cache_metrics_sample: Annotated[float, Setting(
        "share of the blocks that are measured", kept_from=WORKER,
        check=partial(share, "kv_cache_metrics_sample")
    )] = 0.01  # fmt: skip
    otlp_traces_endpoint: Annotated[str | None, Setting(
        "URL of a collector for traces, such as http://host:4318/v1/traces",
        kept_from=CORE | WORKER | RANK
    )] = None  # fmt: skip
    show_progress: Annotated[bool | None, Setting(
        "show no progress bars",
        renamed="use_tqdm_on_load", kept_from=CORE | WORKER | RANK | SERVER
    )] = None  # fmt: skip
    # A folder: the last steps are kept in memory, and written there when a step fails or with
    # llm.write_recording(). `jengine replay` runs them again. They hold prompts and answers.
    flight_recorder: Annotated[str | Path | None, Setting(
        "folder for recordings of steps, which hold prompts and answers", kept_from=WORKER
    )] = None  # fmt: skip
    flight_recorder_steps: Annotated[int, Setting(
        "steps that a recording holds at most", size=True, kept_from=WORKER
    )] = 1024  # fmt: skip
    # Where start_profile() writes: {"profiler": "jax", "dir": folder}.
    profiler_config: Annotated[Mapping[str, Any] | None, Setting(check=check_profiler)] = None

    @classmethod
    def checked(cls, owner: str, model: Any, **given: Any) -> EngineArgs:
        """EngineArgs from keyword arguments; errors name the owner of the arguments."""
        return cls(model, **known_settings(owner, given))

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Add a flag for each setting to a parser of the user's own.

        What is not given stays absent, so `LLM(**vars(parser.parse_args()))` takes the defaults.
        """
        group = parser.add_argument_group("engine")
        add_field_flags(group, EngineArgs, {"model": "a model folder, or demo", **ENGINE_HELP})
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> EngineArgs:
        """EngineArgs from parsed flags. Names that are no settings are left to the program."""
        given = {name: value for name, value in vars(args).items() if name in NAMES}
        if given.get("model") is None:
            raise ConfigError("--model is missing: give a model folder, or demo.")
        return cls(**given)

    def __post_init__(self) -> None:
        check_args(self, SETTINGS)

    @property
    def groups(self) -> Groups:
        """The settings in the groups that rooms take."""
        return groups_of(self, self.adapter_limits)

    @property
    def recorded(self) -> dict[str, Any]:
        """The settings that an engine needs to run recorded steps again, besides sizes."""
        return {name: getattr(self, name) for name, one in SETTINGS.items() if one.recorded}

    @property
    def compilation(self) -> dict[str, Any]:
        """The entries of compilation_config; {} if it was not given."""
        return dict(self.compilation_config or {})

    @property
    def drafts(self) -> SpeculativeConfig | None:
        """Parsed `speculative_config`; None without speculative decoding."""
        given = self.speculative_config
        return None if given is None else speculative_config(given)

    @property
    def nodes(self) -> Nodes:
        """The nodes that run the steps of one replica."""
        return Nodes(self.nnodes, self.node_rank, self.master_addr, self.master_port)

    @property
    def hub(self) -> HubOptions:
        """Options for downloads from the Hugging Face Hub."""
        from jengine.weights.gguf.header import has_header  # numpy: `--help` does without it

        return HubOptions(
            self.revision, self.download_dir, self.hf_token, tuple(self.ignore_patterns or ()),
            has_header=has_header,
        )  # fmt: skip

    @property
    def adapter_limits(self) -> AdapterLimits | None:
        """Number, rank and dtype of LoRA adapters; None if LoRA is off."""
        return adapter_limits(
            self.enable_lora, self.max_loras, self.max_lora_rank, self.max_cpu_loras,
            self.lora_dtype, self.lora_target_modules,
        )  # fmt: skip

    @property
    def replicas_in_processes(self) -> bool:
        """Whether there are several replicas, each in its own process."""
        ranks = self.ranks
        return ranks.size > 1 and (self.data_parallel_backend != "local" or ranks.elsewhere > 0)

    @property
    def devices_per_replica(self) -> int:
        """Devices per replica that the settings ask for."""
        per_stage = (self.tensor_parallel_size or 1) * self.prefill_context_parallel_size
        return per_stage * (self.pipeline_parallel_size or 1)

    @property
    def ranks(self) -> Ranks:
        """The data-parallel ranks, here and on other hosts."""
        sizes = (self.data_parallel_size, self.data_parallel_size_local,
                 self.data_parallel_start_rank)  # fmt: skip
        if self.data_parallel_backend == "ray":
            return Ranks.on_ray(*sizes)
        return Ranks.checked(*sizes, self.data_parallel_address)

    @property
    def kv_events(self) -> EventSettings | None:
        """Parsed `kv_events_config`; None if KV events are not published."""
        return event_settings(self.kv_events_config)

    @property
    def transfers(self) -> TransferSettings | None:
        """Parsed settings of offloading and KV transfer; None if blocks stay on the device."""
        return transfer_settings(
            self.kv_offloading_size, self.kv_offloading_backend, self.kv_transfer_config
        )

    @property
    def weight_settings(self) -> WeightSettings | None:
        """Weights that are served to other engines or taken from one; None: neither."""
        return weight_settings(self.load_format, self.model_loader_extra_config)

    @property
    def expert_balance(self) -> BalanceConfig | None:
        """Parsed settings of expert rebalancing; None if it is off."""
        return balance_config(self.enable_eplb, self.eplb_config)

    @property
    def measured_blocks(self) -> float:
        """The share of KV cache blocks whose stay is measured."""
        return self.kv_cache_metrics_sample if self.kv_cache_metrics else 0.0

    @property
    def cache_codes(self) -> str | None:
        """Code format of the KV cache; None: the model's dtype."""
        return CACHE_CODES[self.kv_cache_dtype]

    @property
    def profile_folder(self) -> str | None:
        """Directory for traces; None if `profiler_config` names none."""
        config = self.profiler_config or {}
        return config.get("dir") or config.get("torch_profiler_dir")

    @property
    def wait_for(self) -> str:
        """Which programs are compiled before requests are admitted, as far as settings tell."""
        return self.warm_up.wait_for(same_bits=False)

    @property
    def warm_up(self) -> WarmUp:
        """The settings that decide which programs are compiled before requests are admitted."""
        return WarmUp(
            self.compilation.get("wait_for"),
            seeded=self.seed is not None,
            deterministic=self.deterministic,
            strict=self.strict,
            enforce_eager=self.enforce_eager,
            num_scheduler_steps=self.num_scheduler_steps,
            executor=self.executor,
        )


SETTINGS = declared(EngineArgs)
ENGINE_HELP = {name: one.help for name, one in SETTINGS.items() if one.help}  # those with a flag
RENAMED = {one.renamed: name for name, one in SETTINGS.items() if one.renamed}
NAMES = (*SETTINGS, *VLLM_SETTINGS, *RENAMED, *PARTS)  # that are known as settings


def settings_of(command: str) -> tuple[str, ...]:
    """The settings that a command has flags for."""
    return tuple(name for name, one in SETTINGS.items() if command in one.commands.split())
