"""The programs that a step consists of."""

from __future__ import annotations

from enum import Enum


class Part(Enum):
    """A program of a step. Most steps are a chain: FORWARD, SAMPLE, and further heads as
    requested."""

    STEP = "step"  # FORWARD and SAMPLE in one program, where they cannot be queued separately
    FORWARD = "forward"  # tokens to hidden states: the model, and the KV cache
    SAMPLE = "sample"  # hidden states of the sampling slots to tokens: output head and sampler
    # SAMPLE split in two, for logits processors that run on the host in between.
    LOGITS = "logits"
    CHOOSE = "choose"
    DRAFT = "draft"  # a step's tokens, hidden states and samples to drafts for the next step
    SCORE = "score"  # hidden states of prompt tokens to log-probabilities, a chunk at a time
    # Of pooling models: hidden states of slots to vectors, and those of prompt tokens, in chunks.
    POOL = "pool"
    POOL_TOKENS = "pool_tokens"
    ENCODER = "encoder"  # before a step: images, audio or text to the encoder's array


# Descriptions for messages to users.
IN_WORDS = {
    Part.STEP: "the model and its sampler",
    Part.FORWARD: "the model",
    Part.SAMPLE: "the sampler",
    Part.LOGITS: "the output head",
    Part.CHOOSE: "the sampler",
    Part.DRAFT: "the heads that draft",
    Part.SCORE: "log-probabilities of prompts",
    Part.POOL: "the pooler",
    Part.POOL_TOKENS: "the pooler of tokens",
    Part.ENCODER: "the encoder",
}


def slot_parts(pooling: str, *, splits: bool) -> tuple[Part, ...]:
    """Head programs over sampling slots. `pooling`: one of POOLED_AS; `splits`: logits processors
    run on the host between logits and sampling."""
    if pooling:
        return (Part.POOL,)
    return (Part.LOGITS, Part.CHOOSE) if splits else (Part.SAMPLE,)


def prompt_parts(pooling: str, *, scores: bool) -> tuple[Part, ...]:
    """Head programs over prompt tokens. `scores`: prompt log-probabilities are wanted."""
    if pooling:
        return (Part.POOL_TOKENS,) if pooling == "tokens" else ()
    return (Part.SCORE,) if scores else ()


# Fields of `Features` that a part depends on.
FEATURES_OF: dict[Part, tuple[str, ...]] = {
    Part.STEP: ("sampling", "taps", "adapters", "drafts", "embeds"),
    Part.FORWARD: ("taps", "adapters", "drafts", "embeds"),
    Part.SAMPLE: ("sampling", "adapters"),
    Part.LOGITS: ("adapters",),
    Part.CHOOSE: ("sampling",),
    Part.SCORE: ("prompt_logprobs", "adapters"),
    Part.DRAFT: ("sampling",),
    Part.POOL: (),
    Part.POOL_TOKENS: (),
    Part.ENCODER: (),
}

# Parts that read a chunk of the prompt tokens of the last forward.
READS_PROMPTS = frozenset({Part.SCORE, Part.POOL_TOKENS})
# Parts compiled per bucket, as the forward is.
BY_BUCKET = frozenset({Part.STEP, Part.FORWARD, Part.DRAFT})
# Parts that run a model on tokens or patches, which their ledger entries count.
RUNS_TOKENS = frozenset({Part.STEP, Part.FORWARD, Part.ENCODER})
