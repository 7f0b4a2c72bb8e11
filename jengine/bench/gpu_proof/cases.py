"""The cases to compile: kernel calls by shape, and steps of models by size. No jax, no data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jengine.models.published import PUBLISHED

CAPABILITIES = (80, 89, 90)
KV_HEADS = 8
ROWS = 64
PAGES = 256


@dataclass(frozen=True)
class KernelCase:
    """One shape that attention and cache writes are compiled for."""

    dtype: str
    head_dim: int
    group: int
    block_size: int = 16
    # Sliding window, soft cap and sinks, all at once.
    options: bool = False

    def __str__(self) -> str:
        options = " all options" if self.options else ""
        return (
            f"{self.dtype} dim {self.head_dim} group {self.group} block {self.block_size}{options}"
        )


# This case's decode attention is also compiled for as many rows as an engine has, with long tables.
USUAL = KernelCase("bfloat16", 128, 4)
MANY_ROWS = 256
LONGEST = 131_072


def kernel_cases() -> Iterator[KernelCase]:
    """Every head size; group sizes whose padding differs; every type; the options."""
    for head_dim in (64, 80, 96, 128, 256):
        for group in (1, 4, 7, 16):
            yield KernelCase("bfloat16", head_dim, group)
    yield KernelCase("bfloat16", 128, 4, block_size=128)
    for head_dim in (64, 128, 256):
        yield KernelCase("bfloat16", head_dim, 8, options=True)
        yield KernelCase("float32", head_dim, 1)
        yield KernelCase("float32", head_dim, 8)
    yield KernelCase("float16", 128, 4)


@dataclass(frozen=True)
class SampleCase:
    """One shape of logits that the kernels of token sampling are compiled for."""

    rows: int
    vocab: int

    def __str__(self) -> str:
        return f"float32 {self.rows} x {self.vocab} logits"


def sample_cases() -> tuple[SampleCase, ...]:
    """One row and many, a usual vocabulary and a large one."""
    return SampleCase(1, 151_936), SampleCase(64, 32_000), SampleCase(64, 151_936)


@dataclass(frozen=True)
class LatentCase:
    """Latent attention of rows with so many queries each, to entries as long as DeepSeek's."""

    dtype: str
    heads: int
    queries: int = 1
    rank: int = 512
    rope: int = 64

    def __str__(self) -> str:
        return f"{self.dtype} latent {self.rank}+{self.rope} heads {self.heads} x {self.queries}"


def latent_cases() -> tuple[LatentCase, ...]:
    """DeepSeek-V3 on one device and on eight, decoding and with prompts, and in float32."""
    return (
        LatentCase("bfloat16", 128), LatentCase("bfloat16", 16), LatentCase("bfloat16", 16, 32),
        LatentCase("float32", 16),
    )  # fmt: skip


@dataclass(frozen=True)
class ExpertsCase:
    """One layer of experts on one of some devices, for so many tokens."""

    model: str
    tokens: int
    devices: int = 1
    dtype: str = "bfloat16"

    def __str__(self) -> str:
        split = f", {self.devices} devices" * (self.devices > 1)
        return f"{self.dtype} {self.model}, {self.tokens} tokens{split}"


def expert_cases() -> Iterator[ExpertsCase]:
    """Every height of tile; shards of experts; few experts that are large."""
    for tokens in (64, 512, 2048, 8192):
        yield ExpertsCase("qwen3-30b-a3b", tokens)
    for tokens in (64, 8192):
        yield ExpertsCase("qwen3-30b-a3b", tokens, devices=4)
        yield ExpertsCase("qwen3-30b-a3b", tokens, dtype="float32")
        yield ExpertsCase("mixtral-8x7b", tokens, dtype="float16")


@dataclass(frozen=True)
class StepCase:
    """One step of a model with real shapes."""

    model: str
    decode_rows: int
    prefill_tokens: int
    attention: str
    devices: int = 1
    stages: int = 1
    variant: str = "greedy"
    max_model_len: int = 16_384
    cache_tokens: int = 500_000
    # The library of all matmuls; without a device XLA cannot time, and takes Triton's.
    matmuls: str = "auto"
    # Whether CUDA graphs hold collectives.
    captured: bool = False

    def __str__(self) -> str:
        size = f"{self.decode_rows} rows"
        size += f" + {self.prefill_tokens} prompt tokens" * bool(self.prefill_tokens)
        split = f", {self.devices} devices" * (self.devices > 1)
        split += f" in {self.stages} stages" * (self.stages > 1)
        drawn = f", {self.variant}" * (self.variant != "greedy")
        drawn += f", matmuls {self.matmuls}" * (self.matmuls != "auto")
        drawn += ", captured collectives" * self.captured
        drawn += f", contexts to {self.max_model_len:,}" * (self.max_model_len > 16_384)
        return f"{self.model}, {size}, {self.attention}{split}{drawn}"


def step_cases() -> Iterator[StepCase]:
    """Decode and prefill steps."""
    for model in ("qwen3-0.6b", "llama-8b"):
        yield StepCase(model, 64, 0, "triton")
        yield StepCase(model, 64, 2048, "triton")
    yield StepCase("llama-8b", 8, 8192, "triton")
    yield StepCase("llama-8b", 64, 0, "triton", matmuls="xla")
    yield StepCase("llama-8b", 8, 0, "triton")
    yield StepCase("llama-8b", 256, 0, "triton", max_model_len=131_072)
    yield StepCase("qwen3-0.6b", 64, 0, "triton", variant="sampled")
    yield StepCase("qwen3-0.6b", 64, 0, "xla", variant="sampled")
    yield StepCase("llama-8b", 64, 0, "triton", devices=4)
    yield StepCase("llama-8b", 64, 0, "triton", devices=4, captured=True)
    yield StepCase("llama-8b", 64, 0, "triton", devices=4, stages=2)
    yield StepCase("llama-8b", 64, 2048, "triton", devices=4, stages=2)
    yield StepCase("llama-8b", 64, 0, "triton", devices=3, stages=3)
    # Experts, with a cache that fits an H100 beside the weights.
    for devices in (1, 4):
        for prompts in (0, 8192):
            yield StepCase(
                "qwen3-30b-a3b", 64, prompts, "triton", devices=devices, cache_tokens=100_000
            )
    # The same step without our kernels, for comparison.
    yield StepCase("llama-8b", 64, 0, "xla")


MODELS = {name: PUBLISHED[name] for name in ("qwen3-0.6b", "llama-8b")}
