"""EngineArgs: an engine's settings, checked by name and by value. No jax.

Names and defaults follow vLLM. vLLM's other names are in vllm_args.py, so that the error for one
of them can say what to use instead.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from jengine.assembly.dict_settings import COMPILATION_KEYS, PROFILER_KEYS, checked_keys
from jengine.assembly.flags import ENGINE_HELP, add_field_flags
from jengine.assembly.ranks import Ranks
from jengine.assembly.structured_settings import checked_reasoning_parser
from jengine.assembly.values import engine_functions, human_integer, one_of, switch, template_text
from jengine.assembly.vllm_args import RENAMED, VLLM_SETTINGS, own_settings
from jengine.config import CACHE_CODES
from jengine.errors import ConfigError, UnsupportedFeature, unknown_argument
from jengine.executor.choice import checked_executor
from jengine.speculative.config import speculative_config
from pallas_kernels.xla_matmul import LIBRARIES

T = TypeVar("T")
# What engines wait for unless `compilation_config` says otherwise: the largest step alone.
USUAL_WAIT = "largest"
SIZES = (
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "kv_cache_memory_bytes",
    "block_size",
    "num_gpu_blocks_override",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "flight_recorder_steps",
)
SWITCHES = (
    "skip_tokenizer_init",
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "overlap",
    "enforce_eager",
    "strict",
    "deterministic",
    "disable_log_stats",
    "kv_cache_metrics",
    "multiprocess",
)


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

    # A folder, "demo", or a flax.nnx module with its parameters.
    model: Any
    _: KW_ONLY
    # Parameters in place of the folder's: a module, an nnx.State or a tree of arrays.
    params: Any = None
    tokenizer: Any = None
    skip_tokenizer_init: bool = False
    trust_remote_code: bool = False
    # A template's text, or the file that holds it.
    chat_template: str | Path | None = None
    dtype: Any = "auto"
    # "int8", "int4" or "fp8": round the weights of a plain model as they are loaded or updated.
    # None: what config.json says. The name of a quantized checkpoint's format is accepted.
    quantization: str | None = None
    # What keys and values are stored as. auto: the model's dtype. "int8" or "fp8": one byte each,
    # with a scale for each head of a token, which is half the memory of bfloat16.
    kv_cache_dtype: str = "auto"
    # The devices that the model is split over: how many share each layer, in how many stages of
    # layers, or a jax.sharding.Mesh made by the caller, whose axis "pp" is that of the stages.
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    # Replicas of the model, each with its own devices: the axis "dp" of a mesh. Limits of requests
    # and memory hold for each replica.
    data_parallel_size: int | None = None
    # Where replicas run: all in one process, or each in a core process of its own ("mp" means the
    # same), so that one that dies takes only its own requests.
    data_parallel_backend: Literal["local", "process", "mp"] = "local"
    # Replicas on several hosts, each in a core process: how many of them run on this one, the rank
    # of its first, and the address and port of the host with the front, where the others join.
    # They share a secret, which also encrypts what they send.
    data_parallel_size_local: int | None = None
    data_parallel_start_rank: int | None = None
    data_parallel_address: str | None = None
    data_parallel_rpc_port: int = 29550
    data_parallel_secret: str | None = field(default=None, repr=False)
    mesh: Any = None
    # How the processes of one mesh work together: see MultihostSettings.
    multihost: Mapping[str, Any] | None = None
    # What runs the steps: "auto", "local", "multihost", "ray", or "package.module:Class".
    executor: str = "auto"
    executor_options: Mapping[str, Any] | None = None
    # Whether scheduler and steps run in a process of their own, beside the one of the requests.
    multiprocess: bool = False
    load_format: Literal["auto", "safetensors", "orbax", "dummy"] = "auto"
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
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    overlap: bool = True
    # Decode steps that the device may run in one call while no request waits for a row.
    num_scheduler_steps: int = 1
    # Speculative decoding, by vLLM's keys: {"method": "ngram", "num_speculative_tokens": 4}.
    speculative_config: Mapping[str, Any] | None = None
    # auto: Triton kernels on NVIDIA GPUs, C++ kernels on CPUs, XLA everywhere else.
    attention_backend: Literal["auto", "xla", "cpu", "triton"] = "auto"
    # auto: the C++ kernels multiply with packed copies of the weights. False: with the arrays
    # themselves, with the same results in about twice the time.
    pack_weights: Literal["auto", False] = "auto"
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
    # JAX functions f(logits) or f(ids, logits) that run in the steps of all requests, or their
    # names, as package.module:function.
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
        group = parser.add_argument_group("engine")
        add_field_flags(group, EngineArgs, {"model": "a model folder, or demo", **ENGINE_HELP})
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> EngineArgs:
        """EngineArgs from parsed flags. Names that are no settings are left to the program."""
        names = {*(item.name for item in fields(cls)), *RENAMED, *VLLM_SETTINGS}
        given = {name: value for name, value in vars(args).items() if name in names}
        if given.get("model") is None:
            raise ConfigError("--model is missing: give a model folder, or demo.")
        return cls(**given)

    def __post_init__(self) -> None:
        for item in fields(self):
            if getattr(self, item.name) is None and item.default is not MISSING:
                setattr(self, item.name, item.default)
        if self.trust_remote_code:
            raise UnsupportedFeature(
                "trust_remote_code=True: code from model folders is never run, by design. "
                "Supported architectures are built in; leave it out."
            )
        for name in SIZES:
            setattr(self, name, human_integer(name, getattr(self, name)))
        for name in SWITCHES:
            switch(name, getattr(self, name))
        if self.chat_template is not None:
            self.chat_template = template_text("chat_template", self.chat_template)
        self._check_choices()
        if self.speculative_config is not None:
            speculative_config(self.speculative_config)
        checked_keys("compilation_config", self.compilation_config, COMPILATION_KEYS)
        _ = self.ranks  # checked
        self._check_wait_for()
        switch("compilation_config['capture_collectives']", self.capture_collectives)
        one_of("compilation_config['matmuls']", self.matmuls, ("auto", *LIBRARIES))
        self._check_profiler()
        self.logits_processors = engine_functions("logits_processors", self.logits_processors)
        self.reasoning_parser = checked_reasoning_parser(
            self.reasoning_parser, self.structured_outputs_config
        )

    def _check_profiler(self) -> None:
        config = self.profiler_config or {}
        checked_keys("profiler_config", self.profiler_config, PROFILER_KEYS)
        if config:
            one_of("profiler_config['profiler']", config.get("profiler"), ("jax", "torch"))

    @property
    def replicas_in_processes(self) -> bool:
        """Whether there are several replicas, each in a process of its own."""
        ranks = self.ranks
        return ranks.size > 1 and (self.data_parallel_backend != "local" or ranks.elsewhere > 0)

    @property
    def ranks(self) -> Ranks:
        """The data-parallel ranks, here and on other hosts."""
        return Ranks.checked(
            self.data_parallel_size,
            self.data_parallel_size_local,
            self.data_parallel_start_rank,
            self.data_parallel_address,
        )

    @property
    def measured_blocks(self) -> float:
        """The share of KV cache blocks whose stay is measured."""
        return self.kv_cache_metrics_sample if self.kv_cache_metrics else 0.0

    @property
    def cache_codes(self) -> str | None:
        """What the KV cache holds in place of the model's dtype."""
        return CACHE_CODES[self.kv_cache_dtype]

    @property
    def profile_folder(self) -> str | None:
        """Where traces are written; None if profiler_config names no folder."""
        config = self.profiler_config or {}
        return config.get("dir") or config.get("torch_profiler_dir")

    @property
    def wait_for(self) -> str:
        """Which programs are compiled before requests are admitted, as far as settings tell."""
        return self.wait_where(same_bits=False)

    def wait_where(self, *, same_bits: bool) -> str:
        """`wait_for` of an engine all of whose programs give a row the same bits, or not."""
        given = (self.compilation_config or {}).get("wait_for")
        if given is not None:
            return given
        complete = self.seed is not None and not (same_bits or self.deterministic)
        return "all" if complete or any(self._complete_warm_up().values()) else USUAL_WAIT

    @property
    def capture_collectives(self) -> bool:
        """Whether CUDA graphs hold collectives."""
        return (self.compilation_config or {}).get("capture_collectives", False)

    @property
    def matmuls(self) -> str:
        """The library of XLA's matmuls on GPUs."""
        return (self.compilation_config or {}).get("matmuls", "auto")

    def _check_wait_for(self) -> None:
        one_of("compilation_config['wait_for']", self.wait_for, ("all", "largest"))
        other = next((why for why, given in self._complete_warm_up().items() if given), None)
        if self.wait_for == "largest" and other is not None:
            raise ConfigError(
                f"compilation_config['wait_for']='largest' with {other}. Leave one of them out."
            )

    def _complete_warm_up(self) -> dict[str, bool]:
        """Settings that rule out compiling while steps run, and whether each is in use."""
        return {
            "strict=True: no step may meet a program that is still to be compiled": self.strict,
            "enforce_eager=True: nothing is compiled before a step needs it": self.enforce_eager,
            f"num_scheduler_steps={self.num_scheduler_steps}: the largest step runs once": (
                self.num_scheduler_steps != 1
            ),
            f"executor={self.executor!r}: every process must run the same program": (
                self.executor not in ("auto", "local")
            ),
        }

    def _check_choices(self) -> None:
        if self.strict and self.enforce_eager:
            raise ConfigError(
                "strict=True forbids compiling after warm-up, and enforce_eager=True leaves the "
                "warm-up out; give one of them."
            )
        checked_executor(self.executor)
        one_of("load_format", self.load_format, ("auto", "safetensors", "orbax", "dummy"))
        if self.data_parallel_backend == "ray":
            raise UnsupportedFeature(
                "data_parallel_backend='ray': replicas are not started by Ray. Start `jengine "
                "serve --headless` on each node with data_parallel_address, or run one engine on "
                "the cluster with executor='ray'."
            )
        one_of("data_parallel_backend", self.data_parallel_backend, ("local", "process", "mp"))
        one_of("scheduling_policy", self.scheduling_policy, ("fcfs", "priority"))
        one_of("attention_backend", self.attention_backend, ("auto", "xla", "cpu", "triton"))
        one_of("kv_cache_dtype", self.kv_cache_dtype, tuple(CACHE_CODES))
        if self.pack_weights == "false":  # as on the command line
            self.pack_weights = False
        if self.pack_weights not in ("auto", False):
            raise ConfigError(f"pack_weights={self.pack_weights!r}: expected 'auto' or False.")
        one_of("generation_config", self.generation_config, ("auto", "default", "vllm"))
        modes = ("raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits")
        one_of("logprobs_mode", self.logprobs_mode, modes)
        if None not in (self.num_gpu_blocks_override, self.kv_cache_memory_bytes):
            raise ConfigError(
                "num_gpu_blocks_override and kv_cache_memory_bytes both size the KV cache; give "
                "one of them."
            )
        sample = self.kv_cache_metrics_sample
        if not (isinstance(sample, (int, float)) and 0 < sample <= 1):
            raise ConfigError(f"kv_cache_metrics_sample={sample!r}: expected a share in (0, 1].")
        share = self.gpu_memory_utilization
        if not isinstance(share, (int, float)) or not 0 < share <= 1:
            raise ConfigError(f"gpu_memory_utilization={share!r}: expected a share in (0, 1].")
        if isinstance(self.max_logprobs, bool) or not isinstance(self.max_logprobs, int):
            raise ConfigError(f"max_logprobs={self.max_logprobs!r}: expected an integer.")
        if self.max_logprobs < -1:
            raise ConfigError(
                f"max_logprobs={self.max_logprobs}: expected 0 or more, or -1 for the vocabulary."
            )
