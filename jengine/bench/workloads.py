"""Work to measure with: prompts of random tokens and how many tokens each answer gets.

In: a trace file, or the name of a workload and a seed. Out: items that every engine reads alike.
No jax.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from jengine.errors import ConfigError, nearest_name

# Ids that are mostly special tokens lie at both ends of a vocabulary.
MARGIN = 10
SHARED_PREFIX = 512


@dataclass(frozen=True)
class Item:
    """One request: greedy, and as long as it says."""

    prompt_token_ids: list[int]
    max_tokens: int


@dataclass(frozen=True)
class Workload:
    """How the requests of a workload are drawn."""

    meaning: str
    requests: int
    lengths: Callable[[random.Random], tuple[int, int]]  # prompt, answer
    prefix: int = 0  # tokens that all prompts begin with


WORKLOADS = {
    "mixed": Workload(
        "prompts of 16 to 300 tokens, answers of 16 to 128", 64,
        lambda rng: (rng.randint(16, 300), rng.randint(16, 128)),
    ),
    "decode": Workload("prompts of 100 tokens, answers of 64", 8, lambda _: (100, 64)),
    "prefill": Workload("prompts of 900 tokens, answers of 2", 8, lambda _: (900, 2)),
    "shared": Workload(
        f"{SHARED_PREFIX} tokens that all prompts share, and 16 to 64 of their own", 64,
        lambda rng: (rng.randint(16, 64), rng.randint(16, 64)), SHARED_PREFIX,
    ),
}  # fmt: skip


def generated(name: str, vocab_size: int, requests: int | None = None, seed: int = 0) -> list[Item]:
    """A named workload; the same seed gives the same one."""
    if name not in WORKLOADS:
        raise ConfigError(
            f"workload {name!r}: expected {', '.join(WORKLOADS)}, or a trace file."
            f"{nearest_name(name, WORKLOADS)}"
        )
    workload = WORKLOADS[name]
    rng = random.Random(seed)  # noqa: S311 - not for secrets
    margin = MARGIN if vocab_size > 4 * MARGIN else 0

    def tokens(count: int) -> list[int]:
        return [rng.randrange(margin, vocab_size - margin) for _ in range(count)]

    prefix = tokens(workload.prefix)
    items = []
    for _ in range(requests or workload.requests):
        prompt, answer = workload.lengths(rng)
        items.append(Item(prefix + tokens(prompt), answer))
    return items


def read_trace(path: Path) -> list[Item]:
    """A file with one JSON object a line: {"prompt_token_ids": [...], "max_tokens": n}."""
    items = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
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
