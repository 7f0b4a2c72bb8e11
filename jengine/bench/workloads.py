"""Benchmark requests: prompts of random tokens, and the number of tokens to generate for each.

In: a trace file, or the name of a workload and a seed. Out: items that every engine reads alike.
Must not import jax.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from jengine.errors import ConfigError, nearest_name

# The first and last ids of a vocabulary, which are mostly special tokens, are not drawn.
MARGIN = 10
SHARED_PREFIX = 512


@dataclass(frozen=True)
class Item:
    """One request: decoded greedily, for exactly `max_tokens` tokens."""

    prompt_token_ids: list[int]
    max_tokens: int


@dataclass(frozen=True)
class Workload:
    """How the requests of a workload are drawn at random."""

    meaning: str
    requests: int
    lengths: Callable[[random.Random], tuple[int, int]]  # prompt, answer
    prefix: int = 0  # tokens that all prompts begin with
    repeats: int = 1  # how often a prompt says its tokens


WORKLOADS = {
    "mixed": Workload(
        "prompts of 16 to 300 tokens, answers of 16 to 128", 64,
        lambda rng: (rng.randint(16, 300), rng.randint(16, 128)),
    ),
    "alone": Workload("a prompt of 16 tokens, an answer of 128", 1, lambda _: (16, 128)),
    "decode": Workload("prompts of 100 tokens, answers of 64", 8, lambda _: (100, 64)),
    "prefill": Workload("prompts of 900 tokens, answers of 2", 8, lambda _: (900, 2)),
    "shared": Workload(
        f"{SHARED_PREFIX} tokens that all prompts share, and 16 to 64 of their own", 64,
        lambda rng: (rng.randint(16, 64), rng.randint(16, 64)), SHARED_PREFIX,
    ),
    "repeat": Workload(
        "prompts that say 16 to 32 tokens four times, answers of 128", 32,
        lambda rng: (rng.randint(16, 32), 128), repeats=4,
    ),
}  # fmt: skip


def named(name: str) -> Workload:
    """The workload of this name."""
    if name not in WORKLOADS:
        raise ConfigError(
            f"--workload {name!r}: expected {', '.join(WORKLOADS)}, or a file with --trace."
            f"{nearest_name(name, WORKLOADS)}"
        )
    return WORKLOADS[name]


def generated(name: str, vocab_size: int, requests: int | None = None, seed: int = 0) -> list[Item]:
    """The requests of a workload; the same seed gives the same ones."""
    workload = named(name)
    rng = random.Random(seed)  # noqa: S311 - not for secrets
    margin = MARGIN if vocab_size > 4 * MARGIN else 0

    def tokens(count: int) -> list[int]:
        return [rng.randrange(margin, vocab_size - margin) for _ in range(count)]

    prefix = tokens(workload.prefix)
    items = []
    for _ in range(requests or workload.requests):
        prompt, answer = workload.lengths(rng)
        items.append(Item(prefix + tokens(prompt) * workload.repeats, answer))
    return items


def read_trace(path: Path) -> list[Item]:
    """A file with one JSON object per line: {"prompt_token_ids": [...], "max_tokens": n}."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--trace {str(path)!r} cannot be read: {error}.") from error
    items = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
            items.append(
                Item([int(i) for i in found["prompt_token_ids"]], int(found["max_tokens"]))
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f'{path}, line {number}: expected {{"prompt_token_ids": [...], "max_tokens": n}} '
                f"({type(error).__name__}: {error})."
            ) from error
    if not items:
        raise ConfigError(f"{path} has no requests.")
    return items


def write_trace(items: list[Item], path: Path) -> None:
    """The same file, as peers read it."""
    path.write_text("".join(json.dumps(asdict(item)) + "\n" for item in items), encoding="utf-8")
