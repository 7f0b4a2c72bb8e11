"""What is compared: built-in texts, random token ids, or a file of the user's own.

In: a tokenizer or none, a file or none. Out: token ids. Must not know engines.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jengine.errors import ConfigError

# Prose, code, figures, another language and a list: distributions of different entropy.
TEXTS = (
    "Once upon a time, in a small village by the sea, there lived a clockmaker who could hear "
    "what the clocks were thinking. One morning the oldest of them",
    'def median(values):\n    """The middle value of a list."""\n    ordered = sorted(values)\n'
    "    middle = len(ordered) // 2\n    if len(ordered) % 2:\n        return",
    "The distance is 384,400 km. At 300,000 km per second, light needs 384,400 / 300,000 = 1.28 "
    "seconds; at 900 km per hour, an aeroplane needs",
    "La nuit tombait sur la ville, et les lampes s'allumaient une à une. Elle ferma son livre,",
    "Shopping list:\n1. bread\n2. butter\n3. two lemons\n4.",
)
# Without a tokenizer: one token, a few, and more than several blocks and tiles.
RANDOM_LENGTHS = (1, 7, 40, 75)


def built_in(encode: Callable[[str], Sequence[int]] | None, vocab_size: int) -> list[list[int]]:
    """The built-in texts as token ids, or random ids for a model without a tokenizer."""
    if encode is not None:
        return [list(encode(text)) for text in TEXTS]
    generator = np.random.default_rng(0)
    return [generator.integers(0, vocab_size, length).tolist() for length in RANDOM_LENGTHS]


def read_prompts(file: Path) -> list[str | list[int]]:
    """Prompts from a file: one per line; each line of a .jsonl file is JSON.

    In JSON a prompt is a string, a list of token ids, or an object with `prompt` or
    `prompt_token_ids`.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--prompts {str(file)!r} cannot be read: {error}.") from error
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise ConfigError(f"--prompts {str(file)!r} holds no prompt; give one per line.")
    if file.suffix != ".jsonl":
        return [line for _, line in numbered]
    return [from_json(line, f"{file}, line {number}") for number, line in numbered]


def from_json(line: str, where: str) -> str | list[int]:
    """One prompt of a .jsonl file."""
    try:
        found: Any = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where}: cannot be read as JSON: {error}.") from error
    if isinstance(found, dict):
        found = found.get("prompt_token_ids", found.get("prompt"))
    if not isinstance(found, str) and not is_ids(found):
        raise ConfigError(
            f"{where}: expected a string, a list of token ids, or an object with 'prompt' or "
            "'prompt_token_ids'."
        )
    return found


def tokenized(
    prompts: Sequence[str | Sequence[int]],
    encode: Callable[[str], Sequence[int]] | None,
    vocab_size: int,
    longest: int,
) -> list[list[int]]:
    """Every prompt as checked token ids."""
    if not prompts:
        raise ConfigError("there are no prompts to compare; give at least one.")
    found = [ids_of(prompt, encode) for prompt in prompts]
    for number, ids in enumerate(found):
        if not ids or not all(0 <= token < vocab_size for token in ids):
            raise ConfigError(
                f"prompt {number}: expected token ids from 0 to {vocab_size - 1}, at least one, "
                f"given {str(ids)[:80]}."
            )
        if len(ids) > longest:
            raise ConfigError(
                f"prompt {number} has {len(ids)} tokens; with the continuation at most {longest} "
                "fit the model's context. Shorten it, or compare fewer new tokens."
            )
    return found


def ids_of(prompt: str | Sequence[int], encode: Callable[[str], Sequence[int]] | None) -> list[int]:
    """The token ids of one prompt."""
    if isinstance(prompt, str):
        if encode is None:
            raise ConfigError(
                "this model has no tokenizer, so prompts must be token ids: lists of integers, or "
                "a .jsonl file with them."
            )
        return list(encode(prompt))
    if not is_ids(prompt):
        raise ConfigError(f"a prompt is {str(prompt)[:80]}: expected a text or token ids.")
    return [int(token) for token in prompt]


def is_ids(value: Any) -> bool:
    """Whether this is a sequence of whole numbers."""
    return isinstance(value, (list, tuple, np.ndarray)) and all(
        isinstance(token, (int, np.integer)) and not isinstance(token, bool) for token in value
    )
