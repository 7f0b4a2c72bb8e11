"""Checks one draw of an encoder-decoder, speech or vision model against transformers.

Of four prompts the second begins as the first: its blocks are in the prefix cache.
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
    drawn_conditional,
)
from jengine.bench.fidelity.found import DrawError
from jengine.bench.fidelity.implementations import COMPILED_ONCE, Implementation
from jengine.bench.fidelity.transformers_process import Transformers

BLOCK, RATE = 16, 16000
LEAST_TOKEN, LARGEST_TOKEN = 5, 88
PROMPTS = (40, 40, 1, 17)  # their lengths
# Pictures of a prompt, and the pixels of their sides: with prompt and answer they fit the positions
# of every decoder that is drawn.
MOST_PICTURES, SIDES = 3, (9, 80)
SETTINGS: dict[str, Any] = {
    "skip_tokenizer_init": True, "enforce_eager": True, "max_logprobs": -1, "max_num_seqs": 4,
    "num_gpu_blocks_override": 64, "block_size": BLOCK, "show_progress": False,
}  # fmt: skip
COMPILED = {"decode_rows": [4], "prefill_tokens": [64], **COMPILED_ONCE}


class EncoderPair(NamedTuple):
    """The encoder's inputs, and a prompt about them."""

    read: list[np.ndarray]
    prompt: list[int]
    places: list[int]  # index in the prompt of each input

    def tokens(self, marks: Sequence[int]) -> list[int]:
        """Token ids of the prompt, with `marks` inserted at the place of each input."""
        found = self.prompt
        for place in sorted(self.places, reverse=True):
            found = [*found[:place], *marks, *found[place:]]
        return found


class EncoderSource(NamedTuple):
    """The encoder's input: text, audio or image."""

    sizes: Sequence[int]  # per pair: tokens, samples, or the fewest pictures
    made: Callable[[np.random.Generator, int], list[np.ndarray]]
    asked: Callable[[list[np.ndarray], list[int]], dict[str, Any]]  # a prompt of the engine
    settings: Mapping[str, Any] = {}


def with_encoder(**compiled: Any) -> dict[str, Any]:
    """Engine settings whose smallest encoder size fits the inputs."""
    return {
        "max_model_len": max(PROMPTS) + ANSWER + 2, "compilation_config": {**COMPILED, **compiled},
    }  # fmt: skip


def pictures(rng: np.random.Generator, least: int) -> list[np.ndarray]:
    """Random pictures of random sizes, `least` to MOST_PICTURES of them."""
    sizes = rng.integers(*SIDES, (rng.integers(least, MOST_PICTURES + 1), 2))
    return [rng.integers(0, 256, (*size, 3), np.uint8) for size in sizes]


SOURCES: Mapping[str, EncoderSource] = {
    "text": EncoderSource(
        (40, 40, 1, 10),
        lambda rng, size: [rng.integers(LEAST_TOKEN, LARGEST_TOKEN, size)],
        lambda read, prompt: {
            "encoder_prompt": read[0].tolist(), "decoder_prompt": {"prompt_token_ids": prompt},
        },
        with_encoder(encoder_tokens=max(POSITIONS)),
    ),
    "speech": EncoderSource(
        (RATE, RATE, RATE // 10, RATE // 2),
        lambda rng, size: [rng.normal(size=size).astype(np.float32)],
        lambda read, prompt: {
            "prompt_token_ids": prompt, "multi_modal_data": {"audio": (read[0], RATE)},
        },
        with_encoder(),
    ),
    "pictures": EncoderSource(
        (1, 1, 0, 0),
        pictures,
        lambda read, prompt: {
            "prompt_token_ids": prompt,
            "multi_modal_data": {"image": [Image.fromarray(one) for one in read]},
        },
        {"compilation_config": COMPILED},
    ),
}  # fmt: skip


def check_conditional(
    theirs: Transformers, family: str, number: int, how: Implementation
) -> DrawError:
    """Check the draw with this number. Raises JengineError if either side rejects the config."""
    kind, settings = CONDITIONAL[family], drawn_conditional(family, number)
    source = SOURCES[kind.reads]
    pairs = drawn_pairs(source, settings, number)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        theirs.write(
            folder, kind.architecture, settings, seed=number, dtype=how.dtype,
            unscaled=kind.unscaled,
        )  # fmt: skip
        asked = [source.asked(pair.read, pair.tokens(kind.own_marks)) for pair in pairs]
        engine: dict[str, Any] = {**SETTINGS, **source.settings, **how.settings}
        compiled = {**engine["compilation_config"], "prefill_tokens": [kind.chunk]}
        engine |= {"dtype": how.dtype, "compilation_config": compiled}
        with LLM(folder, **engine) as llm:
            # transformers takes a token of pictures for one more of them, wherever it is.
            answers = [until(one, MARKS if kind.marks else ()) for one in greedy(llm, asked)]
        texts = [
            [*pair.tokens(kind.marks), *one.tokens[:-1], LEAST_TOKEN]
            for pair, one in zip(pairs, answers, strict=True)
        ]
        scores = partial(
            theirs.score_conditional, folder, kind.architecture, kind.reads,
            [pair.read for pair in pairs], texts,
        )  # fmt: skip
        return compared(scores, answers, how)


def drawn_pairs(
    source: EncoderSource, settings: Mapping[str, Any], number: int
) -> list[EncoderPair]:
    """Draw the inputs and prompts; the second prompt shares the first one's inputs and prefix."""
    rng, begin = np.random.default_rng(number), settings.get("decoder_start_token_id", 1)
    read = [source.made(rng, size) for size in source.sizes]
    rests = [rng.integers(LEAST_TOKEN, LARGEST_TOKEN, size - 1).tolist() for size in PROMPTS]
    rests[1][: 2 * BLOCK] = rests[0][: 2 * BLOCK]
    first, _, *others = (
        EncoderPair(one, [begin, *rest], rng.integers(1, len(rest) + 2, len(one)).tolist())
        for one, rest in zip(read, rests, strict=True)
    )
    return [first, first._replace(prompt=[begin, *rests[1]]), *others]
