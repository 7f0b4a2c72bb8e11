"""Generation settings in a GGUF file: end tokens and sampling.

In: a header. Out: generation_config.json's keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from jengine.weights.gguf.header import GgufHeader

# "general.sampling." suffix -> generation_config.json key.
SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
# Roles of tokens that end generation: end of text, of turn and of message.
ENDINGS = ("eos", "eot", "eom")
# The same by text, for older files without these roles.
ENDING_TEXTS = {
    "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|end_of_text|>",
    "<|return|>", "<|call|>", "<end_of_utterance>", "<|user|>", "<|observation|>",
}  # fmt: skip
# In vocabularies with both (Harmony), <|end|> ends a message, not the generation.
HARMONY = {"<|return|>", "<|call|>"}
CONTROL = 3  # token type of special tokens


def generation_of(header: GgufHeader) -> dict[str, object]:
    """Contents of generation_config.json."""
    given = header.metadata
    found = {
        name: given[f"general.sampling.{key}"]
        for key, name in SAMPLING.items()
        if f"general.sampling.{key}" in given
    }
    ends = sorted({*_named(header), *_by_text(header)})
    return {**found, "eos_token_id": ends} if ends else found


def _named(header: GgufHeader) -> Iterator[int]:
    for role in ENDINGS:
        found = header.metadata.get(f"tokenizer.ggml.{role}_token_id")
        if isinstance(found, int) and found >= 0:
            yield found


def _by_text(header: GgufHeader) -> Iterator[int]:
    tokens, types = (
        header.metadata.get(f"tokenizer.ggml.{key}") for key in ("tokens", "token_type")
    )
    if not isinstance(tokens, Sequence) or not isinstance(types, np.ndarray):
        return
    texts, count = list(tokens), len(tokens)
    controls = {texts[one]: int(one) for one in np.flatnonzero(types[:count] == CONTROL)}
    left_out = {"<|end|>"} if controls.keys() >= HARMONY else set()
    yield from (controls[text] for text in (ENDING_TEXTS - left_out) & controls.keys())
