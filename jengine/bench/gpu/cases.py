"""The measured cases, at real sizes and at tiny sizes for a dry run. No jax here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from jengine.bench.attention_shapes import AttentionShape
from jengine.bench.gpu_proof.cases import MODELS as REAL_MODELS


@dataclass(frozen=True)
class AttentionCase(AttentionShape):
    """Rows of equal context, each with this many new tokens (1: decode)."""

    rows: int
    context: int  # new tokens included
    new_tokens: int = 1
    longest: int = 0  # tokens that the tables have room for; 0: those of the context
    shared: int = 0  # first tokens that all rows find in the same blocks

    def __str__(self) -> str:
        new = f", {self.new_tokens} of them new" * (self.new_tokens > 1)
        room = f" in tables for {self.longest}" * (self.longest > 0)
        same = f", the first {self.shared} in the same blocks" * (self.shared > 0)
        held = f", cache of {self.codes}" * bool(self.codes)
        return f"{self.rows} x {self.context} tokens{new}{room}{same}{held}"

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values of one layer, read once."""
        size = 4 if self.dtype == "float32" else 2
        head = self.head_dim + 2 if self.codes else self.head_dim * size
        tokens = self.rows * (self.context - self.shared) + self.shared
        return tokens * 2 * self.kv_heads * head

    @property
    def operations(self) -> int:
        """FLOPs of causal attention."""
        first, last = self.context - self.new_tokens + 1, self.context
        seen = (first + last) * self.new_tokens // 2
        return 4 * self.rows * seen * self.kv_heads * self.group * self.head_dim


@dataclass(frozen=True)
class SamplingCase:
    """Rows with the same sampling parameters."""

    rows: int
    vocab: int
    name: str
    settings: tuple[float, int, float, float]  # temperature, top_k, top_p, min_p

    def __str__(self) -> str:
        return f"{self.rows} x {self.vocab}, {self.name}"


@dataclass(frozen=True)
class Requests:
    """Equal requests that arrive at once."""

    count: int
    prompt: int
    answer: int

    @property
    def is_prompts(self) -> bool:
        """Whether the prompt is what takes time."""
        return self.answer == 1

    @property
    def tokens(self) -> int:
        """Of one request."""
        return self.prompt + self.answer

    def __str__(self) -> str:
        prompts = f"{self.count} x prompt of {self.prompt:,}"
        return prompts if self.is_prompts else f"{prompts}, answer of {self.answer}"


@dataclass(frozen=True)
class Sizes:
    """All sizes that differ between a real and a dry run."""

    copy_bytes: int
    product: int
    layer_bytes: int  # how much cache all layers of a kernel's case may take
    calls: int  # of an operation in one program
    repeats: int  # runs of that program
    decode: tuple[AttentionCase, ...]
    prefill: tuple[AttentionCase, ...]
    sampling: tuple[SamplingCase, ...]
    written_tokens: tuple[int, ...]
    models: dict[str, dict[str, Any]]
    model_rows: tuple[int, ...]
    model_contexts: tuple[int, ...]
    prompts: tuple[tuple[int, int], ...]  # how many, tokens of each
    answers: tuple[tuple[int, int, int], ...]  # rows, prompt tokens, answer tokens
    step_tokens: tuple[int, ...]  # compiled numbers of prompt tokens of one step
    steps: int
    max_model_len: int | None  # None: that of the model
    peer: tuple[tuple[int, int], ...]  # rows, context
    cache_elements: int  # of the large cache: beyond what 32 bits count
    matmul_tokens: tuple[int, ...]
    matmul_widths: tuple[int, int, int]  # hidden, gate, and queries, keys and values together
    matmul_dtype: str
    mixed: tuple[tuple[int, int, int], ...]  # decode rows, their context, prompt tokens beside them
    soak_steps: int
    race: tuple[Requests, ...]  # which two engines run in turns
    table: tuple[Requests, ...]  # which each engine of the table runs


SAMPLERS = {
    "greedy": (0.0, 0, 1.0, 0.0),
    "temperature": (0.8, 0, 1.0, 0.0),
    "top-p": (1.0, 0, 0.95, 0.0),
    "top-k and top-p": (0.8, 50, 0.95, 0.0),
}


def sampling_cases(rows: tuple[int, ...], vocab: int) -> tuple[SamplingCase, ...]:
    """Every sampling mode at every number of rows."""
    return tuple(
        SamplingCase(count, vocab, name, settings)
        for count in rows
        for name, settings in SAMPLERS.items()
    )


REAL = Sizes(
    copy_bytes=4 << 30,
    product=8192,
    layer_bytes=12 << 30,
    calls=16,
    repeats=7,
    decode=(
        AttentionCase(64, 4096),
        AttentionCase(64, 4096, codes="fp8"),
        AttentionCase(64, 4096, codes="int8"),
        AttentionCase(1, 1024),
        AttentionCase(256, 1024, longest=131_072),
        AttentionCase(64, 4096, shared=2048),
        *(
            AttentionCase(rows, context)
            for rows, context in (
                (1, 16_384), (8, 4096), (32, 4096), (128, 1024), (128, 4096), (64, 16_384),
                (1, 131_072),
            )
        ),
        AttentionCase(1, 16_384, codes="fp8"),
        AttentionCase(128, 1024, codes="fp8"),
    ),
    prefill=(
        AttentionCase(1, 8192, 8192),
        AttentionCase(1, 8192, 8192, codes="fp8"),
        AttentionCase(1, 8192, 8192, codes="int8"),
        AttentionCase(4, 2048, 2048),
        AttentionCase(1, 16_384, 2048),
        AttentionCase(16, 512, 512),
    ),
    sampling=sampling_cases((1, 64), 151_936),
    written_tokens=(64, 8192),
    models=REAL_MODELS,
    model_rows=(1, 8, 32, 64, 128),
    model_contexts=(1024, 4096, 16_384),
    prompts=((1, 1024), (1, 4096), (1, 16_000), (8, 2048)),
    answers=((1, 1024, 128), (32, 1024, 128)),
    step_tokens=(1024, 4096),
    steps=40,
    max_model_len=None,  # tables for 131,072 tokens of llama-8b, as an engine has by default
    peer=((1, 1024), (32, 1024), (8, 4096)),  # each takes torch a while to compile
    cache_elements=(1 << 31) + (1 << 24),
    matmul_tokens=(8, 64, 256, 2048, 32, 128, 512, 8192),
    matmul_widths=(4096, 14_336, 6144),
    matmul_dtype="bfloat16",
    mixed=((63, 1024, 256), (63, 1024, 2048), (7, 1024, 8192)),
    soak_steps=10_000,
    race=(Requests(1, 1024, 128), Requests(64, 1024, 128), Requests(256, 256, 128)),
    table=(
        *(Requests(1, prompt, 1) for prompt in (2048, 8192, 32_768)),
        *(Requests(rows, 128, 256) for rows in (1, 8, 64)),
        Requests(64, 2048, 128),  # prompts beside decodes
    ),
)  # fmt: skip


def tiny_model(real: dict[str, Any]) -> dict[str, Any]:
    """The same family, small enough for interpreter mode."""
    return {
        **real,
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 256,
        "torch_dtype": "float32",
    }


SMALL = AttentionCase(2, 40, kv_heads=2, group=2, head_dim=16, dtype="float32")
DRY = Sizes(
    copy_bytes=1 << 16,
    product=64,
    layer_bytes=1 << 16,
    calls=1,
    repeats=1,
    decode=(SMALL, replace(SMALL, codes="fp8")),
    prefill=(replace(SMALL, new_tokens=33), replace(SMALL, new_tokens=33, codes="int8")),
    sampling=sampling_cases((1,), 70)[1::2],
    written_tokens=(3,),
    models={name: tiny_model(model) for name, model in REAL_MODELS.items()},
    model_rows=(1, 2),
    model_contexts=(32, 4096),  # the second does not fit, and must be said so
    prompts=((1, 40),),
    answers=((2, 16, 4),),
    step_tokens=(64,),
    steps=4,
    max_model_len=128,
    peer=((2, 8),),
    cache_elements=1 << 16,
    matmul_tokens=(2, 8),
    matmul_widths=(32, 48, 64),
    matmul_dtype="float32",
    mixed=((1, 32, 40),),
    soak_steps=20,
    race=(Requests(2, 8, 3),),
    table=(Requests(1, 40, 1), Requests(2, 8, 3)),
)


def sizes(*, dry_run: bool) -> Sizes:
    return DRY if dry_run else REAL
