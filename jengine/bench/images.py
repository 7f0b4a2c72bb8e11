"""Multimodal throughput: images per second, alternating with transformers on the same requests.

`python -m jengine.bench.images MODEL --against transformers:PYTHON`. MODEL is a folder of Qwen2-VL,
such as the one with random weights of `python -m jengine.bench.models qwen2-vl-70m FOLDER`.
Every request has a picture of noise, a few tokens of text, and a short greedy answer; resizing and
cutting pictures counts. Pictures differ from round to round, so that nothing is found in a cache. A
round runs every engine once; the median of some rounds counts.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from jengine import LLM, SamplingParams
from jengine.bench.against import PROGRAMS, PeerProcess
from jengine.bench.frame import Benchmark
from jengine.bench.rates import printed_rates, rates_of
from jengine.errors import ConfigError

SIDES = (112, 448)  # of pictures, in pixels
TEXT = 16  # tokens behind a picture


@dataclass(frozen=True)
class ImageSettings:
    model: str
    dtype: str
    pictures: int
    sides: tuple[int, int]
    text: list[int]
    answer: int
    batch: int


def pictures_of(count: int, number: int, sides: tuple[int, int]) -> list[np.ndarray]:
    """The images of a round; `images_peer.py` generates the same ones."""
    rng = np.random.default_rng((7, number))
    sizes = rng.integers(sides[0], sides[1], (count, 2), endpoint=True)
    return [rng.integers(0, 256, (*size, 3), np.uint8) for size in sizes]


def opened_peer(word: str, settings: ImageSettings) -> PeerProcess:
    """Start the peer given as NAME or NAME:PYTHON."""
    name, _, python = word.partition(":")
    if name != "transformers":
        raise ConfigError(f"--against {name!r}: expected transformers.")
    return PeerProcess(name, [python or sys.executable, str(PROGRAMS / "images_peer.py")], settings)


def own_run(llm: LLM, settings: ImageSettings, number: int) -> tuple[float, int]:
    """Answer a round's requests; returns (seconds, prompt tokens)."""
    vision = llm.engine.model.vision
    if vision is None or vision.start_token is None or vision.end_token is None:
        raise ConfigError(f"{settings.model}: expected a model of Qwen2-VL.")
    ids = [vision.start_token, vision.image_token, vision.end_token, *settings.text]
    pictures = pictures_of(settings.pictures, number, settings.sides)
    prompts = [{"prompt_token_ids": ids, "multi_modal_data": {"image": one}} for one in pictures]
    params = SamplingParams(temperature=0, max_tokens=settings.answer, ignore_eos=True)
    began = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - began
    return seconds, sum(len(one.prompt_token_ids or ()) for one in outputs)


def measured(arguments: argparse.Namespace) -> dict[str, Any]:
    """Images per second of each engine, and jengine's ratio to each."""
    with ExitStack() as stack:
        llm = stack.enter_context(
            LLM(
                arguments.model, dtype=arguments.dtype, skip_tokenizer_init=True, seed=0,
                max_num_seqs=arguments.batch, max_model_len=1024,
            )
        )  # fmt: skip
        most = min(llm.engine.model.vocab_size // 2, 1000)
        text = np.random.default_rng(0).integers(5, most, TEXT).tolist()
        settings = ImageSettings(
            str(arguments.model), arguments.dtype, arguments.pictures, SIDES, text,
            arguments.answer, arguments.batch,
        )  # fmt: skip
        peers = [stack.enter_context(opened_peer(word, settings)) for word in arguments.against]
        seconds: dict[str, list[float]] = {"jengine": [], **{one.name: [] for one in peers}}
        tokens = 0
        for number in range(arguments.rounds + 1):  # the first is not counted
            took, tokens = own_run(llm, settings, number)
            found = {"jengine": took, **{peer.name: peer.run()[0] for peer in peers}}
            for name in seconds:
                seconds[name] += [found[name]] if number else []
        return {
            "images": settings.pictures,
            "prompt_tokens": tokens,
            "answer_tokens": settings.answer,
            **rates_of("images", settings.pictures, seconds),
            "peers": {one.name: one.version for one in peers},
        }


FLAGS = {
    "model": {},
    "--against": {"nargs": "*", "default": [], "metavar": "NAME[:PYTHON]"},
    "--pictures": {"type": int, "default": 32, "help": "requests of a round"},
    "--answer": {"type": int, "default": 8, "help": "tokens of an answer"},
    "--batch": {"type": int, "default": 8, "help": "requests at a time"},
    "--rounds": 3, "--dtype": "float32",
}  # fmt: skip
main = Benchmark("images", __doc__, FLAGS, measured, printed_rates("images")).main


if __name__ == "__main__":
    raise SystemExit(main())
