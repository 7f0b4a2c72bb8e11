"""Checks one draw of an encoder-decoder, speech or vision model against transformers.

Of four such pairs the second begins as the first: its blocks are in the prefix cache.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from jengine.api.llm import LLM
from jengine.bench.fidelity.answers import ANSWER, compared, greedy, until
from jengine.bench.fidelity.conditional import (
    CONDITIONAL,
    MARKS,
    POSITIONS,
    Conditional,
    drawn_conditional,
)
from jengine.bench.fidelity.found import Found
from jengine.bench.fidelity.implementations import NOT_KEPT, Implementation
from jengine.bench.fidelity.transformers_process import Transformers

BLOCK, RATE = 16, 16000
LEAST_TOKEN, LARGEST_TOKEN = 5, 88
PROMPTS = (40, 40, 1, 17)  # their lengths
MOST_OF_PICTURE = 100
SETTINGS: dict[str, Any] = {
    "skip_tokenizer_init": True, "enforce_eager": True, "max_logprobs": -1, "max_num_seqs": 4,
    "num_gpu_blocks_override": 64, "block_size": BLOCK, "show_progress": False,
}  # fmt: skip
COMPILED = {"decode_rows": [4], "prefill_tokens": [64], **NOT_KEPT}


class Source(NamedTuple):
    """The encoder's input: text, audio or image."""

    sizes: Sequence[Any]  # of a pair each
    made: Callable[[np.random.Generator, Any], np.ndarray]
    asked: Callable[[np.ndarray, list[int]], dict[str, Any]]  # a prompt of the engine
    settings: Mapping[str, Any] = {}


def with_encoder(**compiled: Any) -> dict[str, Any]:
    """Engine settings whose smallest encoder size fits the inputs."""
    return {
        "max_model_len": max(PROMPTS) + ANSWER + 2, "compilation_config": {**COMPILED, **compiled},
    }  # fmt: skip


SOURCES: Mapping[str, Source] = {
    "text": Source(
        (40, 40, 1, 10),
        lambda rng, size: rng.integers(LEAST_TOKEN, LARGEST_TOKEN, size),
        lambda source, prompt: {
            "encoder_prompt": source.tolist(), "decoder_prompt": {"prompt_token_ids": prompt},
        },
        with_encoder(encoder_tokens=max(POSITIONS)),
    ),
    "speech": Source(
        (RATE, RATE, RATE // 10, RATE // 2),
        lambda rng, size: rng.normal(size=size).astype(np.float32),
        lambda source, prompt: {
            "prompt_token_ids": prompt, "multi_modal_data": {"audio": (source, RATE)},
        },
        with_encoder(),
    ),
    "picture": Source(
        ((32, 24), (32, 24), (16, 48), (20, 31)),
        lambda rng, size: rng.integers(0, 256, (*size, 3), np.uint8),
        lambda source, prompt: {
            "prompt_token_ids": prompt,
            "multi_modal_data": {"image": [Image.fromarray(source)]},
        },
        {
            "max_model_len": max(PROMPTS) + MOST_OF_PICTURE + ANSWER,
            "compilation_config": COMPILED,
        },
    ),
}  # fmt: skip


def check_conditional(theirs: Transformers, family: str, number: int, how: Implementation) -> Found:
    """Check the draw with this number. Raises JengineError if either side rejects the config."""
    kind, settings = CONDITIONAL[family], drawn_conditional(family, number)
    source = SOURCES[kind.reads]
    read, beginnings, rests = drawn_pairs(kind, settings, number)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        theirs.write(
            folder, kind.architecture, settings, seed=number, dtype=how.dtype,
            unscaled="d_kv" in settings,
        )  # fmt: skip
        asked = [
            source.asked(one, [*begin, *kind.own_marks, *rest])
            for one, begin, rest in zip(read, beginnings, rests, strict=True)
        ]
        with LLM(
            folder, **{**SETTINGS, **source.settings, **how.settings, "dtype": how.dtype}
        ) as llm:
            # transformers takes a token of pictures for one more of them, wherever it is.
            answers = [until(one, MARKS if kind.marks else ()) for one in greedy(llm, asked)]
        texts = [
            [*begin, *kind.marks, *rest, *one.tokens[:-1], LEAST_TOKEN]
            for begin, rest, one in zip(beginnings, rests, answers, strict=True)
        ]
        scores = partial(
            theirs.score_conditional, folder, kind.architecture, kind.reads, read, texts
        )
        return compared(scores, answers, how)


def drawn_pairs(
    kind: Conditional, settings: Mapping[str, Any], number: int
) -> tuple[list[np.ndarray], list[list[int]], list[list[int]]]:
    """Encoder inputs, and prompts before and after an image's placeholder."""
    rng, source = np.random.default_rng(number), SOURCES[kind.reads]
    read = [source.made(rng, size) for size in source.sizes]
    rests = [rng.integers(LEAST_TOKEN, LARGEST_TOKEN, size - 1).tolist() for size in PROMPTS]
    read[1] = read[0]
    rests[1][: 2 * BLOCK] = rests[0][: 2 * BLOCK]
    return read, [[settings.get("decoder_start_token_id", 1)]] * len(PROMPTS), rests
