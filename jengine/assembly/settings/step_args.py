"""Settings of kernels, compiled programs and sampling. No jax."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from jengine.assembly.settings.dict_settings import COMPILATION_KEYS
from jengine.assembly.settings.reasoning_settings import KEYS as REASONING_KEYS
from jengine.assembly.settings.setting import CHECK, CORE, WORKER, Setting
from jengine.assembly.settings.structured_settings import KEYS as STRUCTURED_OUTPUTS_KEYS
from jengine.assembly.settings.values import count_or_all, engine_functions
from jengine.assembly.settings.warm_up_settings import WarmUp


@dataclass(kw_only=True)
class KernelArgs:
    """Kernels, and inputs of steps besides token ids."""

    attention_backend: Annotated[Literal["auto", "xla", "cpu", "triton", "fa4"], Setting(
        "the kernels; auto: Triton on NVIDIA GPUs, C++ on CPUs, else XLA; fa4: Triton, and "
        "FlashAttention-4 for prompts (jengine[fa4]), which auto is on 9.0", recorded=True
    )] = "auto"  # fmt: skip
    disable_cascade_attn: Annotated[bool, Setting(
        "read blocks that several decodes begin with anew for each, on GPUs", recorded=True
    )] = False  # fmt: skip
    # False: same results, in about twice the time.
    pack_weights: Annotated[Literal["auto", False], Setting(
        "auto: copy weights into the form that CPU kernels read fastest; false: do not",
        recorded=True
    )] = "auto"  # fmt: skip
    # Whether prompts may be embeddings, {"prompt_embeds": array [tokens, hidden]}.
    enable_prompt_embeds: bool = False


@dataclass(kw_only=True)
class ProgramArgs:
    """Compiled programs."""

    enable_sleep_mode: Annotated[bool, Setting(
        "let /sleep free the memory of weights and cache until /wake_up"
    )] = False  # fmt: skip
    enforce_eager: Annotated[bool, Setting(
        "compile steps when they are first needed, not at the start"
    )] = False  # fmt: skip
    strict: Annotated[bool, Setting("make a compile after the start an error")] = False
    # Without cost with the CPU kernels.
    deterministic: Annotated[bool, Setting(
        "bitwise equal log-probabilities in any batch; slower where XLA multiplies",
        recorded=True, commands="compare doctor"
    )] = False  # fmt: skip
    compilation_config: Annotated[Mapping[str, Any] | None, Setting(
        "JSON, or --compilation-config.KEY VALUE; keys: " + ", ".join(COMPILATION_KEYS),
        short="-cc", recorded=True, commands="compare"
    )] = None  # fmt: skip

    @property
    def compilation(self) -> dict[str, Any]:
        """compilation_config, {} by default."""
        return dict(self.compilation_config or {})


@dataclass(kw_only=True)
class AnswerArgs:
    """Sampling defaults, structured output, logits processors and log-probabilities."""

    generation_config: Annotated[Literal["auto", "default", "vllm"], Setting(
        "whether the model's generation_config.json sets sampling defaults", kept_from=WORKER
    )] = "auto"  # fmt: skip
    override_generation_config: Annotated[Mapping[str, Any] | None, Setting(
        "JSON, or --override-generation-config.KEY VALUE: sampling defaults that go before "
        "those of generation_config.json"
    )] = None  # fmt: skip
    # How the model marks its reasoning, after which structured output begins.
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
    # f(logits) or f(ids, logits), or subclasses of `LogitsProcessor`.
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


@dataclass(frozen=True)
class StepSettings:
    """Kernels, programs and sampling features of steps."""

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
