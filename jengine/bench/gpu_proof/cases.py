"""The cases to compile: kernel calls by shape, and steps of models by size. No jax, no data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from jengine.bench.attention_shapes import AttentionShape
from jengine.models.reading.published import PUBLISHED
from jengine.runner.variants.parts import Part
from pallas_kernels.cuda_devices import DEVICES

CAPABILITIES = tuple(DEVICES)
# Devices that all cases are compiled for. The others have what is `common`.
FULL = (80, 89, 90)
ROWS = 64
PAGES = 256


MANY_ROWS = 256
LONGEST = 131_072


@dataclass(frozen=True)
class SampleCase:
    """A logits shape to compile the sampling kernels for."""

    rows: int
    vocab: int

    def __str__(self) -> str:
        return f"float32 {self.rows} x {self.vocab} logits"


def sample_cases() -> tuple[SampleCase, ...]:
    """One row and many, at a common and at a large vocabulary."""
    return SampleCase(1, 151_936), SampleCase(64, 32_000), SampleCase(64, 151_936)


@dataclass(frozen=True)
class LatentCase:
    """Latent attention with DeepSeek's entry sizes; rows have this many queries each."""

    dtype: str
    heads: int
    queries: int = 1
    rank: int = 512
    rope: int = 64

    def __str__(self) -> str:
        return f"{self.dtype} latent {self.rank}+{self.rope} heads {self.heads} x {self.queries}"


def latent_cases() -> tuple[LatentCase, ...]:
    """DeepSeek-V3 on one and on eight devices, decode and prefill, and in float32."""
    return (
        LatentCase("bfloat16", 128), LatentCase("bfloat16", 16), LatentCase("bfloat16", 16, 32),
        LatentCase("float32", 16),
    )  # fmt: skip


@dataclass(frozen=True)
class RecurrentCase:
    """The recurrence of a model's layers, on one of some devices, for this many rows."""

    model: str
    rows: int
    devices: int

    def __str__(self) -> str:
        split = f", {self.devices} devices" * (self.devices > 1)
        return f"float32 states of {self.model}, {self.rows} rows{split}"


def recurrent_cases() -> Iterator[RecurrentCase]:
    """One row and many; all heads and an eighth."""
    for model in ("qwen3-next-80b-a3b", "granite-4-h-small"):
        for rows, devices in ((1, 1), (64, 1), (64, 8)):
            yield RecurrentCase(model, rows, devices)


@dataclass(frozen=True)
class ExpertsCase:
    """A MoE layer on one of some devices, for this many tokens."""

    model: str
    tokens: int
    devices: int = 1
    dtype: str = "bfloat16"

    def __str__(self) -> str:
        split = f", {self.devices} devices" * (self.devices > 1)
        return f"{self.dtype} {self.model}, {self.tokens} tokens{split}"


def expert_cases() -> Iterator[ExpertsCase]:
    """Every tile height, expert-parallel shards, and few large experts."""
    for tokens in (64, 512, 2048, 8192):
        yield ExpertsCase("qwen3-30b-a3b", tokens)
    for tokens in (64, 8192):
        yield ExpertsCase("qwen3-30b-a3b", tokens, devices=4)
        yield ExpertsCase("qwen3-30b-a3b", tokens, dtype="float32")
        yield ExpertsCase("mixtral-8x7b", tokens, dtype="float16")


@dataclass(frozen=True)
class CodedCase:
    """A matmul, or MoE layer, with quantized weights of few bits."""

    kind: Literal["int4", "int8", "fp4", "fp8"]
    group: int
    rows: int
    inputs: int = 4096
    columns: int = 6144  # of experts: those of a gate
    zeros: bool = False
    float8: bool = False  # activations in FP8, and their scales
    experts: int = 0
    choices: int = 4
    activation: str | None = None

    def __str__(self) -> str:
        what = f"{self.kind} by {self.group}" + " with zeros" * self.zeros
        what += " x fp8" * self.float8
        size = f"{self.rows} x {self.inputs} x {self.columns}"
        return f"{what}, {size}" + f", {self.experts} experts" * bool(self.experts)


def coded_cases() -> Iterator[CodedCase]:
    """Llama-3.1-8B's QKV projection; experts of gpt-oss and DeepSeek-V3 on eight devices; one row,
    a few, and a prefill."""
    for rows in (8, 64, 2048):
        yield CodedCase("int4", 128, rows)
        yield CodedCase("int4", 128, rows, zeros=True)
        yield CodedCase("int4", 32, rows)
        yield CodedCase("int8", 128, rows, zeros=True)
        yield CodedCase("int8", 32, rows)
        yield CodedCase("fp4", 32, rows)
        yield CodedCase("fp8", 128, rows)
        yield CodedCase("fp8", 128, rows, float8=True)
    for rows in (64, 512, 2048, 8192):
        yield CodedCase("fp4", 32, rows, 2880, 2880, experts=128)
    for rows in (64, 8192):
        yield CodedCase("fp8", 128, rows, 7168, 256, experts=256, choices=8, activation="silu")
        yield CodedCase("int4", 128, rows, 2048, 768, experts=128, choices=8, activation="silu")
        yield CodedCase(
            "int4", 128, rows, 2048, 768, zeros=True, experts=128, choices=8, activation="silu"
        )


COMMON = frozenset(map(str, (
    *(
        AttentionShape(head_dim=head_dim, group=group, codes=codes)
        for head_dim, group in ((64, 8), (128, 4))
        for codes in ("", "fp8")
    ),
    LatentCase("bfloat16", 128),
    CodedCase("int4", 128, 64),
)))  # fmt: skip


def is_compiled(case: object, capability: int) -> bool:
    """Whether a kernel case is compiled for this device."""
    return capability in FULL or str(case) in COMMON


@dataclass(frozen=True)
class StepCase:
    """One step of a model of real size."""

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
    # What the cache holds in place of plain numbers, and what weights are rounded to.
    codes: str = ""
    adapters: int = 0  # slots of LoRA adapters of rank 16
    quantization: str = ""
    # How tokens or sums travel where devices have whole experts, and how many replicas of the model
    # these devices are, which step together.
    experts: str = ""
    replicas: int = 1
    on_host: float = 0  # GiB of layers that stay in the host's memory
    layers: int = 0  # how many of the model's, from the first on; 0: all
    context: int = 1  # devices that divide the cached tokens of each request
    groups: int = 1  # of devices, which divide the tokens of each step
    part: Part = Part.STEP  # the program of a chain; STEP: all of it in one

    def __str__(self) -> str:
        size = f"{self.decode_rows} rows"
        size += f" + {self.prefill_tokens} prompt tokens" * bool(self.prefill_tokens)
        split = f", {self.devices} devices" * (self.devices > 1)
        split += f" in {self.stages} stages" * (self.stages > 1)
        split += f" of which {self.context} divide contexts" * (self.context > 1)
        split += f" in {self.groups} groups that divide tokens" * (self.groups > 1)
        drawn = f", {self.variant}" * (self.variant != "greedy")
        drawn += f", matmuls {self.matmuls}" * (self.matmuls != "auto")
        drawn += ", captured collectives" * self.captured
        drawn += f", cache of {self.codes}" * bool(self.codes)
        drawn += f", {self.adapters} adapters" * bool(self.adapters)
        drawn += f", weights in {self.quantization}" * bool(self.quantization)
        drawn += f", whole experts by {self.experts}" * bool(self.experts)
        drawn += f", {self.replicas} replicas" * (self.replicas > 1)
        drawn += f", {self.on_host:g} GiB on the host" * bool(self.on_host)
        drawn += f", {self.layers} layers" * bool(self.layers)
        drawn += f", contexts to {self.max_model_len:,}" * (self.max_model_len > 16_384)
        drawn += f", {self.part.value} alone" * (self.part is not Part.STEP)
        return f"{self.model}, {size}, {self.attention}{split}{drawn}"


def step_cases() -> Iterator[StepCase]:
    """Decode and prefill steps."""
    for model in ("qwen3-0.6b", "llama-8b"):
        yield StepCase(model, 64, 0, "triton")
        yield StepCase(model, 64, 2048, "triton")
    yield StepCase("llama-8b", 8, 8192, "triton")
    yield StepCase("llama-8b", 64, 0, "triton", matmuls="xla")
    yield StepCase("llama-8b", 8, 0, "triton")
    yield StepCase("llama-8b", 64, 2048, "triton", codes="fp8")
    yield StepCase("llama-8b", 64, 0, "triton", adapters=8)
    yield StepCase("llama-8b", 64, 2048, "triton", adapters=8)
    yield StepCase("llama-8b", 64, 0, "triton", devices=4, adapters=8)
    yield StepCase("llama-8b", 64, 0, "triton", quantization="fp8")
    yield StepCase("llama-8b", 64, 2048, "triton", quantization="fp8")
    for name in ("int4", "fp8 blocks"):
        yield StepCase("llama-8b", 8, 0, "triton", quantization=name)
        yield StepCase("llama-8b", 64, 0, "triton", quantization=name)
        yield StepCase("llama-8b", 64, 2048, "triton", quantization=name)
    yield StepCase("llama-8b", 64, 0, "triton", devices=4, quantization="int4")
    for prompts in (0, 2048):
        yield StepCase(
            "gpt-oss-120b", 64, prompts, "triton", quantization="mxfp4", cache_tokens=100_000
        )
    yield StepCase("llama-8b", 256, 0, "triton", max_model_len=131_072)
    yield StepCase("qwen3-0.6b", 64, 0, "triton", variant="sampled")
    yield StepCase("qwen3-0.6b", 64, 0, "xla", variant="sampled")
    yield StepCase("llama-8b", 64, 0, "triton", devices=4)
    yield StepCase("llama-8b", 64, 0, "triton", devices=4, captured=True)
    yield StepCase("llama-8b", 64, 0, "triton", devices=4, stages=2, part=Part.FORWARD)
    yield StepCase("llama-8b", 64, 2048, "triton", devices=4, stages=2, part=Part.FORWARD)
    yield StepCase("llama-8b", 64, 0, "triton", devices=3, stages=3, part=Part.FORWARD)
    # Experts, with a cache that fits an H100 beside the weights.
    for devices in (1, 4):
        for prompts in (0, 8192):
            yield StepCase(
                "qwen3-30b-a3b", 64, prompts, "triton", devices=devices, cache_tokens=100_000
            )
    for replicas in (1, 8):
        for exchange in ("allgather_reducescatter", "all_to_all"):
            yield StepCase(
                "qwen3-30b-a3b", 64, 0, "triton", devices=8, cache_tokens=100_000,
                experts=exchange, replicas=replicas, part=Part.FORWARD,
            )  # fmt: skip
    # Every layer on the host, and some; sharded, and in few bits.
    yield StepCase("llama-8b", 64, 0, "triton", on_host=16)
    yield StepCase("llama-8b", 64, 2048, "triton", on_host=4)
    yield StepCase("llama-8b", 64, 0, "triton", devices=4, on_host=2)
    yield StepCase("llama-8b", 64, 0, "triton", quantization="int4", on_host=2)
    # Large models by a few of their layers, which have all kinds: whole experts on eight devices.
    for model, layers in (
        ("deepseek-v3", 5), ("gpt-oss-120b", 4), ("glm-4.6", 5), ("qwen3-next-80b-a3b", 4),
    ):  # fmt: skip
        yield StepCase(
            model, 64, 0, "triton", devices=8, cache_tokens=100_000,
            experts="allgather_reducescatter", layers=layers,
        )  # fmt: skip
    # Recurrent layers whose heads are all on one device.
    for model, layers in (("qwen3-next-80b-a3b", 4), ("granite-4-h-small", 6)):
        yield StepCase(model, 64, 0, "triton", cache_tokens=100_000, layers=layers)
    yield from divided_cases()
    # The programs that engines run in place of such steps.
    for prompts in (0, 2048):
        yield StepCase("llama-8b", 64, prompts, "triton", part=Part.FORWARD)
    for variant in ("greedy", "sampled", "full"):
        yield StepCase("llama-8b", 64, 0, "triton", variant=variant, part=Part.SAMPLE)
    yield StepCase("llama-8b", 64, 2048, "triton", variant="scored", part=Part.SCORE)
    yield StepCase("llama-8b", 64, 0, "triton", devices=4, part=Part.FORWARD)
    yield StepCase("llama-8b", 64, 0, "triton", devices=4, part=Part.SAMPLE)
    # The same step without our kernels, for comparison.
    yield StepCase("llama-8b", 64, 0, "xla")


def divided_cases() -> Iterator[StepCase]:
    """Steps with context parallelism: tokens or the cache are sharded over devices."""
    # Fewer KV heads than devices, which divide the cached tokens of each request.
    for model, context in (("qwen3-30b-a3b", 2), ("deepseek-v3", 8)):
        yield StepCase(
            model, 64, 0, "triton", devices=8, cache_tokens=100_000, layers=4, context=context
        )
    # Groups of devices that divide the tokens of a step, beside one device that runs them all.
    for devices, groups in ((1, 1), (8, 8), (8, 4)):
        yield StepCase(
            "llama-8b", 8, 16_384, "triton", devices=devices, groups=groups, layers=4,
            cache_tokens=300_000, max_model_len=131_072,
        )  # fmt: skip


MODELS = {name: PUBLISHED[name] for name in ("qwen3-0.6b", "llama-8b")}
