"""Stage: autotunes each kernel's tile sizes on this device and writes tuning tables.

In: the tables of this checkout. Out: a line per trial, and DIR/tuning/<operation>.json with the
best before the earlier entries. `--install-tables` of the main program copies them into the
checkout.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import jax

from jengine.bench.gpu.case_inputs import attention_arrays, attention_program
from jengine.bench.gpu.cases import AttentionCase, Sizes, sizes
from jengine.bench.gpu.kernels import time_sampling, time_write, timed
from jengine.bench.gpu.part import MOST_TEXT, StageResult, run_stage, write_json
from jengine.bench.machine import commit
from pallas_kernels.launch import KernelError
from pallas_kernels.launch.call import INTERPRETED_CAPABILITY
from pallas_kernels.shapes import next_power_of_two
from pallas_kernels.tuning import table

Times = Callable[[], dict[str, float]]
# The first of each is tried first: a sweep may be stopped.
TRIALS: dict[str, dict[str, tuple[int, ...]]] = {
    "decode_attention": {"tokens": (64, 32, 128), "warps": (4, 8), "stages": (5, 3)},
    "prefill_attention": {
        "queries": (128, 64), "tokens": (64, 128), "warps": (8, 4), "stages": (5, 2),
    },
    "find_cuts": {"block": (1024, 2048), "warps": (16, 8, 32)},
    "add_up_parts": {"block": (512, 1024, 256), "warps": (8, 4, 16)},
    "parts": {"block": (1024, 2048, 4096), "warps": (4, 8)},
    "cache_write": {"warps": (1, 2, 4, 8)},
}  # fmt: skip
DRY_TRIALS: dict[str, dict[str, tuple[int, ...]]] = {
    "decode_attention": {"tokens": (16, 32), "warps": (4,), "stages": (2,)},
    "prefill_attention": {"queries": (16,), "tokens": (16,), "warps": (4,), "stages": (2,)},
    "find_cuts": {"block": (64,), "warps": (4,)},
    "add_up_parts": {"block": (64,), "warps": (4,)},
    "parts": {"block": (64,), "warps": (4,)},
    "cache_write": {"warps": (1,)},
}


class Search(NamedTuple):
    """One table entry to tune: candidate sizes, applicability, and how to time it."""

    operation: str
    when: dict[str, Any]
    choices: dict[str, tuple[int, ...]]
    times: Times  # seconds, by case

    def __str__(self) -> str:
        return f"{self.operation} {self.when}"

    def trials(self) -> list[dict[str, int]]:
        """All combinations of candidate sizes."""
        values = itertools.product(*self.choices.values())
        return [dict(zip(self.choices, some, strict=True)) for some in values]


def searches(chosen: Sizes, *, dry_run: bool) -> list[Search]:
    """All searches, most valuable first."""
    trials, first = DRY_TRIALS if dry_run else TRIALS, chosen.decode[0]
    facts = {"capability": capability(), "dtype": first.dtype, "head_dim": first.head_dim}
    lanes = next_power_of_two(first.group + 2) * next_power_of_two(first.head_dim)
    attention = {"decode_attention": chosen.decode[:2], "prefill_attention": chosen.prefill[:2]}
    return [
        *(
            Search(name, facts, trials[name], attention_times(cases, chosen))
            for name, cases in attention.items()
        ),
        Search("cache_write", {"lanes": lanes}, trials["cache_write"], write_times(chosen)),
        *(
            Search("token_sampling", {"kernel": name}, trials[name], sampling_times(name, chosen))
            for name in ("find_cuts", "add_up_parts", "parts")
        ),
    ]


def capability() -> int:
    """CUDA compute capability of this device, as 90 for 9.0."""
    device = jax.devices()[0]
    if device.platform == "cpu":
        return INTERPRETED_CAPABILITY
    major, minor = device.compute_capability.split(".")
    return int(major) * 10 + int(minor)


def attention_times(cases: tuple[AttentionCase, ...], chosen: Sizes) -> Times:
    """Returns a function that times attention over some cases, whose inputs are created once."""
    arrays_of = cache(lambda case: attention_arrays(case, chosen.layer_bytes // 2))

    def times() -> dict[str, float]:
        found = {}
        for case in cases:
            arrays = arrays_of(case)
            program = attention_program(case, arrays.layers, chosen.calls, "triton")
            found[str(case)] = timed(chosen, program, *arrays[:-1], profiled=False).best
        return found

    return times


def sampling_times(kernel: str, chosen: Sizes) -> Times:
    """Returns a function that times a sampling kernel's dominant case."""
    name = "temperature" if kernel == "parts" else "top-k and top-p"
    cases = [case for case in chosen.sampling if case.name == name]

    def times() -> dict[str, float]:
        return {str(case): time_sampling(case, chosen, "triton").best for case in cases}

    return times


def write_times(chosen: Sizes) -> Times:
    """Returns a function that times cache writes."""

    def times() -> dict[str, float]:
        return {
            str(tokens): time_write(tokens, chosen, "triton")[0].best
            for tokens in chosen.written_tokens
        }

    return times


def measure(part: StageResult, args: argparse.Namespace) -> None:
    """One line per trial; a table after each successful search."""
    folder = args.part.parent / "tuning"
    folder.mkdir(exist_ok=True)
    left = searches(sizes(dry_run=args.dry_run), dry_run=args.dry_run)
    while left:
        share = 1 / len(left)
        search = left.pop(0)
        scores = dict(tried(search, part, share))
        if not scores:
            continue
        best = min(scores, key=scores.__getitem__)
        use = dict(best)
        part.add(what=search.operation, when=search.when, best=use)
        put_in_front(search, use)
        write_json(folder / f"{search.operation}.json", noted(search.operation, args.dry_run))


def tried(
    search: Search, part: StageResult, share: float
) -> Iterator[tuple[tuple[tuple[str, int], ...], float]]:
    """Trials that ran, with the geometric mean of their times."""
    for trial in part.in_time(search.trials(), share):
        line = {"what": search.operation, "when": search.when, "trial": trial}
        try:
            with in_use(search, trial):
                times = search.times()
        except (KernelError, jax.errors.JaxRuntimeError) as error:
            # Too much shared memory, or more registers than a program of so many warps may have.
            part.add(**line, refused=str(error)[:MOST_TEXT])
            continue
        part.add(**line, us={case: round(time * 1e6, 2) for case, time in times.items()})
        yield tuple(trial.items()), math.exp(sum(map(math.log, times.values())) / len(times))


@contextmanager
def in_use(search: Search, trial: dict[str, int]) -> Iterator[None]:
    """Apply a trial's sizes inside the block: tables are re-read at every trace."""
    entries = table(search.operation)["entries"]
    before = list(entries)
    put_in_front(search, trial)
    jax.clear_caches()
    try:
        yield
    finally:
        entries[:] = before
        jax.clear_caches()


def put_in_front(search: Search, use: dict[str, int]) -> None:
    """Use these sizes in this process, replacing an entry for the same case."""
    entries = table(search.operation)["entries"]
    entries[:] = [
        {"when": search.when, "use": use},
        *(entry for entry in entries if entry.get("when") != search.when),
    ]


def noted(operation: str, dry_run: bool) -> dict[str, Any]:
    """The table with a provenance note on its first entries."""
    where = "a dry run, which means nothing" if dry_run else jax.devices()[0].device_kind
    known = dict(table(operation))
    note = f"Timed on {where}, commit {commit() or 'unknown'}: entries with the same conditions. "
    return {**known, "note": note + str(known.get("note", ""))}


if __name__ == "__main__":
    run_stage(measure)
