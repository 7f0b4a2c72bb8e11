"""EngineArgs: what a user may say about an engine, checked by name. No jax.

Names and defaults follow vLLM. Names whose feature is not built are known, so that the error can
say which feature is missing.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from jengine.errors import ConfigError, UnsupportedFeature, unknown_argument
from jengine.executor.choice import checked_executor

# name -> (feature, values that mean "not in use")
LATER_FEATURES: dict[str, tuple[str, tuple[Any, ...]]] = {
    "quantization": ("quantization", (None,)),
    "quantization_config": ("quantization", (None,)),
    "enable_lora": ("LoRA adapters", (None, False)),
    "max_loras": ("LoRA adapters", (None,)),
    "max_lora_rank": ("LoRA adapters", (None,)),
    "speculative_config": ("speculative decoding", (None,)),
    "spec_method": ("speculative decoding", (None,)),
    "spec_model": ("speculative decoding", (None,)),
    "spec_tokens": ("speculative decoding", (None,)),
    "logits_processors": ("custom logits processors", (None,)),
    "limit_mm_per_prompt": ("multimodal input", (None,)),
    "mm_processor_kwargs": ("multimodal input", (None,)),
    "convert": ("pooling models", (None, "auto", "none")),
    "runner": ("pooling models", (None, "auto", "generate")),
    "hf_overrides": ("overrides of the model's config", (None,)),
    "hf_token": ("downloading models", (None,)),
    "revision": ("downloading models", (None,)),
    "tokenizer_revision": ("downloading models", (None,)),
    "distributed_executor_backend": ("several hosts", (None, "uni")),
}
COMPILATION_KEYS = {
    "cache_dir": "directory of the persistent compile cache, or False for none",
    "variants": "step variants to compile in warm-up: greedy, sampled, full, scored",
    "decode_rows": "ladder of decode rows",
    "prefill_tokens": "ladder of prefill tokens",
    "pages": "ladder of cache blocks a row may read",
    "wait_for": "what is compiled before the engine is ready: all, or the largest step alone, "
    "which runs everything until the others are there",
}
SUFFIXES = {"k": 1000, "m": 1000**2, "g": 1000**3, "K": 1024, "M": 1024**2, "G": 1024**3}


@dataclass(kw_only=True)
class EngineArgs:
    """Everything about an engine but the requests. None means: decide from model and device."""

    # A folder, "demo", or a flax.nnx module with its parameters.
    model: Any
    # Parameters in place of the folder's: a module, an nnx.State or a tree of arrays.
    params: Any = None
    tokenizer: Any = None
    skip_tokenizer_init: bool = False
    trust_remote_code: bool = False
    chat_template: str | None = None
    dtype: Any = "auto"
    # The devices that the model is split over: how many share each layer, in how many stages of
    # layers, or a jax.sharding.Mesh of one's own, whose axis "pp" is that of the stages.
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    # Copies of the model, each on so many devices of its own: the axis "dp" of a mesh. Limits of
    # requests and memory are each copy's.
    data_parallel_size: int | None = None
    mesh: Any = None
    # How the processes of one mesh work together: see MultihostSettings.
    multihost: Mapping[str, Any] | None = None
    # What runs the steps: "auto", "local", "multihost", "ray", or "package.module:Class".
    executor: str = "auto"
    executor_options: Mapping[str, Any] | None = None
    load_format: Literal["auto", "safetensors", "orbax", "dummy"] = "auto"
    seed: int = 0
    # Sizes may also be given as text: "4096", "32k" (32,000) or "32K" (32,768).
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int | None = None
    gpu_memory_utilization: float = 0.92
    kv_cache_memory_bytes: int | None = None
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    overlap: bool = True
    # Decode steps that the device may run in one call while no request waits for a row.
    num_scheduler_steps: int = 1
    # auto: Triton kernels on NVIDIA GPUs, XLA everywhere else.
    attention_backend: Literal["auto", "xla", "triton"] = "auto"
    enforce_eager: bool = False
    strict: bool = False
    # Bitwise the same log-probabilities alone or in any batch, generated or scored. Slower.
    deterministic: bool = False
    compilation_config: Mapping[str, Any] | None = None
    generation_config: Literal["auto", "default", "vllm"] = "auto"
    max_logprobs: int = 20
    logprobs_mode: Literal[
        "raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"
    ] = "raw_logprobs"
    disable_log_stats: bool = True
    show_progress: bool | None = None

    @classmethod
    def checked(cls, owner: str, **given: Any) -> EngineArgs:
        """EngineArgs from keyword arguments; unknown and unbuilt names are refused by name."""
        if "memory_utilization" in given:
            given["gpu_memory_utilization"] = given.pop("memory_utilization")
        if given.get("distributed_executor_backend") == "ray":
            given["executor"] = given.pop("distributed_executor_backend")
        known = [item.name for item in fields(cls)]
        for name in [name for name in given if name in LATER_FEATURES]:
            feature, unused = LATER_FEATURES[name]
            value = given.pop(name)
            if not any(value is item or value == item for item in unused):
                raise UnsupportedFeature(
                    f"{owner}({name}={value!r}): {feature} is not built yet; leave {name} out."
                )
        for name in given:
            if name not in known:
                raise unknown_argument(owner, name, known)
        return cls(**given)

    def __post_init__(self) -> None:
        if self.trust_remote_code:
            raise UnsupportedFeature(
                "trust_remote_code=True: code from model folders is never run, by design. "
                "Supported architectures are built in; leave it out."
            )
        self.max_model_len = human_integer("max_model_len", self.max_model_len)
        self.max_num_seqs = human_integer("max_num_seqs", self.max_num_seqs)
        self.max_num_batched_tokens = human_integer(
            "max_num_batched_tokens", self.max_num_batched_tokens
        )
        self.kv_cache_memory_bytes = human_integer(
            "kv_cache_memory_bytes", self.kv_cache_memory_bytes
        )
        self.block_size = human_integer("block_size", self.block_size)
        self.tensor_parallel_size = human_integer("tensor_parallel_size", self.tensor_parallel_size)
        self.pipeline_parallel_size = human_integer(
            "pipeline_parallel_size", self.pipeline_parallel_size
        )
        self.data_parallel_size = human_integer("data_parallel_size", self.data_parallel_size)
        self._check_choices()
        for key in self.compilation_config or {}:
            if key not in COMPILATION_KEYS:
                close = difflib.get_close_matches(str(key), COMPILATION_KEYS, n=1)
                raise ConfigError(
                    f"compilation_config has no key {key!r}. Known: "
                    f"{', '.join(COMPILATION_KEYS)}."
                    + (f" Did you mean {close[0]!r}?" * bool(close))
                )
        self._check_wait_for()

    def _check_wait_for(self) -> None:
        wanted = (self.compilation_config or {}).get("wait_for", "all")
        one_of("compilation_config['wait_for']", wanted, ("all", "largest"))
        other = next((why for why, given in self._complete_warm_up().items() if given), None)
        if wanted == "largest" and other is not None:
            raise ConfigError(
                f"compilation_config['wait_for']='largest' with {other}. Leave one of them out."
            )

    def _complete_warm_up(self) -> dict[str, bool]:
        """What cannot go with a warm-up that goes on while steps run, and whether it is asked
        for."""
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
        one_of("scheduling_policy", self.scheduling_policy, ("fcfs", "priority"))
        one_of("attention_backend", self.attention_backend, ("auto", "xla", "triton"))
        one_of("generation_config", self.generation_config, ("auto", "default", "vllm"))
        modes = ("raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits")
        one_of("logprobs_mode", self.logprobs_mode, modes)
        share = self.gpu_memory_utilization
        if not isinstance(share, (int, float)) or not 0 < share <= 1:
            raise ConfigError(f"gpu_memory_utilization={share!r}: expected a share in (0, 1].")
        if isinstance(self.max_logprobs, bool) or not isinstance(self.max_logprobs, int):
            raise ConfigError(f"max_logprobs={self.max_logprobs!r}: expected an integer.")
        if self.max_logprobs < -1:
            raise ConfigError(
                f"max_logprobs={self.max_logprobs}: expected 0 or more, or -1 for the vocabulary."
            )


def one_of(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Refuse a value that is not among the choices."""
    if value not in choices:
        raise ConfigError(f"{name}={value!r}: expected one of {', '.join(map(repr, choices))}.")


def human_integer(name: str, value: int | str | None) -> int | None:
    """A positive int from 4096, '4096', '32k' (32,000) or '32K' (32,768)."""
    if value is None:
        return None
    problem = ConfigError(f"{name}={value!r}: expected a positive integer such as 4096 or '32K'.")
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise problem
    if isinstance(value, str):
        scale = SUFFIXES.get(value[-1:], 1)
        try:
            value = round(float(value[:-1] if scale != 1 else value) * scale)
        except (ValueError, OverflowError) as error:
            raise problem from error
    if value < 1:
        raise problem
    return value
