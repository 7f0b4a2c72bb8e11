"""Datasets: single- and multi-turn conversations with prompts and output lengths.

In: settings and a vocabulary, or a file. Out: conversations, the same ones for the same seed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jengine.bench.serve.settings import LoadSettings
from jengine.bench.serve.vocabulary import WordList
from jengine.errors import ConfigError

SHAPE = '{"prompt": ...}, {"messages": [...]} or {"prompt_token_ids": [...]}'


@dataclass(frozen=True)
class LoadRequest:
    """One request. `prompt` is text, token ids or chat messages; in later turns the history
    precedes it."""

    prompt: str | list[int] | list[dict[str, Any]]
    prompt_len: int  # tokens, as far as known before the server counts them
    output_len: int


Conversation = list[LoadRequest]


def conversations(settings: LoadSettings, vocabulary: WordList) -> list[Conversation]:
    """The dataset's requests."""
    if settings.trace is not None:
        return from_file(Path(settings.trace), settings, "--trace")
    found = DATASETS[settings.dataset_name](settings, vocabulary)
    return found


def random_prompts(settings: LoadSettings, vocabulary: WordList) -> list[Conversation]:
    """Random words, optionally after a prefix that all prompts share."""
    rng = np.random.default_rng(settings.seed)
    prefix = vocabulary.text(rng, settings.random_prefix_len)
    prompts = lengths(rng, settings.random_input_len, settings.range_ratio("input"), settings)
    answers = lengths(rng, settings.random_output_len, settings.range_ratio("output"), settings)
    return [
        [
            LoadRequest(
                prefix + vocabulary.text(rng, prompt), settings.random_prefix_len + prompt, answer
            )
        ]
        for prompt, answer in zip(prompts, answers, strict=True)
    ]


def lengths(
    rng: np.random.Generator, middle: int, ratio: float, settings: LoadSettings
) -> list[int]:
    """Random length per request, within `ratio` of the mean."""
    low, high = int(middle * (1 - ratio)), int(np.ceil(middle * (1 + ratio)))
    return rng.integers(max(low, 1), max(high, 1) + 1, settings.num_prompts).tolist()


def repeated_prefixes(settings: LoadSettings, vocabulary: WordList) -> list[Conversation]:
    """A few long prefixes, each shared by many prompts."""
    rng = np.random.default_rng(settings.seed)
    prefixes = [
        vocabulary.text(rng, settings.prefix_repetition_prefix_len)
        for _ in range(settings.prefix_repetition_num_prefixes)
    ]
    length = settings.prefix_repetition_prefix_len + settings.prefix_repetition_suffix_len
    found = [
        [
            LoadRequest(
                prefixes[number % len(prefixes)]
                + vocabulary.text(rng, settings.prefix_repetition_suffix_len),
                length,
                settings.prefix_repetition_output_len,
            )
        ]
        for number in range(settings.num_prompts)
    ]
    rng.shuffle(found)  # type: ignore[arg-type] - a list is a mutable sequence
    return found


def multi_turn(settings: LoadSettings, vocabulary: WordList) -> list[Conversation]:
    """Conversations, each turn of which sends the whole history."""
    rng = np.random.default_rng(settings.seed)
    shared = vocabulary.text(rng, settings.random_prefix_len)
    found: list[Conversation] = []
    left = settings.num_prompts
    while left > 0:
        first = shared
        turns: Conversation = []
        for _ in range(min(settings.multi_turn_num_turns, left)):
            text = first + vocabulary.text(rng, settings.random_input_len)
            length = settings.random_input_len + (settings.random_prefix_len if first else 0)
            turns.append(LoadRequest(text, length, settings.random_output_len))
            first = ""
        found.append(turns)
        left -= len(turns)
    return found


def custom(settings: LoadSettings, _: WordList) -> list[Conversation]:
    """Prompts from a file, shuffled, and repeated if there are too few."""
    if settings.dataset_path is None:
        raise ConfigError(f"--dataset-name custom: expected --dataset-path, a file of {SHAPE}.")
    found = from_file(Path(settings.dataset_path), settings, "--dataset-path")
    if not settings.disable_shuffle:
        np.random.default_rng(settings.seed).shuffle(found)  # type: ignore[arg-type]
    if settings.num_prompts > len(found) and settings.no_oversample:
        return found
    return [found[number % len(found)] for number in range(settings.num_prompts)]


def from_file(path: Path, settings: LoadSettings, flag: str) -> list[Conversation]:
    """One request per line of a file."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{flag} {str(path)!r} cannot be read: {error}.") from error
    found = [[turn] for turn in turns_of(lines, path, settings)]
    if not found:
        raise ConfigError(f"{path} has no requests: expected lines of {SHAPE}.")
    return found


def turns_of(lines: list[str], path: Path, settings: LoadSettings) -> Iterator[LoadRequest]:
    """The requests of a file's lines."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
            prompt = next(found[key] for key in PROMPT_KEYS if key in found)
            wanted = settings.custom_output_len
            if wanted == -1 or "prompt_token_ids" in found:
                wanted = int(found.get("max_tokens", found.get("output_tokens", wanted)))
            if not prompt or wanted < 1:
                raise ValueError("an empty prompt, or no number of tokens to make")
        except (ValueError, KeyError, TypeError, StopIteration, AttributeError) as error:
            raise ConfigError(
                f"{path}, line {number}: expected {SHAPE}, with max_tokens or output_tokens beside "
                f"token ids and where --custom-output-len is -1 ({type(error).__name__}: {error})."
            ) from error
        ids = "prompt_token_ids" in found
        yield LoadRequest(prompt, len(prompt) if ids else 0, wanted)


PROMPT_KEYS = ("prompt_token_ids", "messages", "prompt")
DATASETS: dict[str, Callable[[LoadSettings, WordList], list[Conversation]]] = {
    "random": random_prompts,
    "prefix_repetition": repeated_prefixes,
    "multi_turn": multi_turn,
    "custom": custom,
}
