"""Plain numpy float64 answers to what the sampler computes, one row at a time, with sorts.

In: numpy rows and parameters. Out: expected arrays. Must not know: how the device does it.
Also builds SamplingInput with every feature off, so that a test names only what it tests.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jengine.sampling import SamplingInput, sample, seed_words

KEY = seed_words(0)
jit_sample = jax.jit(sample, static_argnames=("features",))

_OFF: dict[str, tuple[type, float]] = {
    "temperature": (np.float32, 0.0),
    "top_k": (np.int32, 0),
    "top_p": (np.float32, 1.0),
    "min_p": (np.float32, 0.0),
    "adjusted": (np.int32, 0),
    "beyond_mask": (np.int32, 1),
    "processors": (np.int32, 0),
    "repetition": (np.float32, 1.0),
    "presence": (np.float32, 0.0),
    "frequency": (np.float32, 0.0),
    "prompt_length": (np.int32, 0),
    "min_position": (np.int32, 0),
}


def make_inputs(rows: Sequence[int], positions: Sequence[int], **given: Any) -> SamplingInput:
    """Everything off but what is given; scalars are repeated for each row."""
    count = len(rows)
    seeds = given.pop("seed", [0] * count)
    fields = {
        name: np.broadcast_to(np.asarray(given.pop(name, off), dtype), (count,)).copy()
        for name, (dtype, off) in _OFF.items()
    }
    assert not given, f"unknown fields {sorted(given)}"
    # A request's row in the sampler's state, counted from 1; here that of the engine.
    fields["adjusted"] *= np.asarray(rows, np.int32) + 1
    return SamplingInput(
        rows=np.asarray(rows, np.int32),
        positions=np.asarray(positions, np.int32),
        seed=np.stack([seed_words(seed) for seed in seeds]),
        **fields,
    )


def descending(row: np.ndarray) -> np.ndarray:
    """Token ids by value descending, then index ascending."""
    return np.argsort(-row.astype(np.float64), kind="stable")


def log_softmax(row: np.ndarray) -> np.ndarray:
    shifted = row.astype(np.float64) - row.max()
    return shifted - np.log(np.exp(shifted).sum())


def min_p_set(row: np.ndarray, min_p: float) -> np.ndarray:
    return np.exp(row.astype(np.float64) - row.max()) >= min_p


def top_k_set(row: np.ndarray, k: int) -> np.ndarray:
    kept = np.zeros(row.size, bool)
    kept[descending(row)[: k if k > 0 else row.size]] = True
    return kept & (row > -np.inf)


def top_p_lengths(row: np.ndarray, p: float, slack: float = 2e-6) -> tuple[int, int]:
    """Shortest and longest right answer: float32 sums may miss p by the slack."""
    order = descending(row)
    mass = np.cumsum(np.exp(log_softmax(row)[order]))
    finite = int((row > -np.inf).sum())
    if p >= 1:
        return finite, finite
    shortest, longest = (int(np.searchsorted(mass, p + s)) + 1 for s in (-slack, slack))
    return min(max(shortest, 1), finite), min(max(longest, 1), finite)


def apply_adjustments(
    row: np.ndarray,
    known: Sequence[int],
    prompt_length: int,
    *,
    allowed: Sequence[int] | None = None,
    bias: dict[int, float] | None = None,
    bad_words: Sequence[Sequence[int]] = (),
    stop: Sequence[int] = (),
    min_position: int = 0,
    repetition: float = 1.0,
    presence: float = 0.0,
    frequency: float = 0.0,
) -> np.ndarray:
    """The order of vLLM V1; `known` is prompt and generated tokens up to the sampled position."""
    row = row.astype(np.float64)
    if allowed is not None:
        row[[token for token in range(row.size) if token not in set(allowed)]] = -np.inf
    generated = list(known[prompt_length:])
    ended = [
        word[-1]
        for word in map(list, bad_words)
        if len(word) - 1 <= len(generated)
        and generated[len(generated) - len(word) + 1 :] == word[:-1]
    ]
    row = _masked(row, ended)
    if len(known) < min_position:
        row = _masked(row, list(stop))
    for token, value in (bias or {}).items():
        row[token] += value
    seen = sorted(set(known))
    row[seen] = np.where(row[seen] > 0, row[seen] / repetition, row[seen] * repetition)
    count = np.bincount(np.asarray(generated, int), minlength=row.size)
    return row - frequency * count - presence * (count > 0)


def _masked(row: np.ndarray, tokens: Sequence[int]) -> np.ndarray:
    masked = row.copy()
    masked[list(tokens)] = -np.inf
    return masked if (masked > -np.inf).any() else row
