"""Times steps by decode rows, prompt tokens and context: the table of `jengine simulate`.

In: an engine in which nothing runs. Out: a dict for JSON with its limits and seconds per step. The
plans are made up, as in `driver`, so the prefix cache must be emptied afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import msgspec
import numpy as np

from jengine.api.llm import LLM
from jengine.bench.driver import Driver
from jengine.bench.surroundings import surroundings
from jengine.engine.core import EngineCore
from jengine.errors import ConfigError
from jengine.plan import Entries, Entry, NewBlocks, NewRow, Plan, RowSampling, packed_tokens
from jengine.runner.step.group_arrays import each_array

PLANS = 3  # for each time: one to queue behind, the one that is timed, and one to queue meanwhile
IDLE = 0.1  # seconds without steps
IDLE_TIMES = 5  # per round
SHORT = 32  # the shortest context


def measure(llm: LLM, iterations: int) -> dict[str, Any]:
    """Measure the table of an engine; medians over rounds."""
    rounds = Rounds(llm)
    for _ in range(iterations):
        rounds.another()
    return rounds.table()


class Rounds:
    """Times every step of a table once per round, so that slow phases of the machine affect all
    entries alike."""

    def __init__(self, llm: LLM) -> None:
        core = llm.engine.in_process.core
        if not isinstance(core, EngineCore):
            raise ConfigError(
                "--step-table: expected one engine in this process, without replicas."
            )
        self._llm = llm
        self._depth = core.depth
        self._axes = axes(llm)
        self._found: list[list[float]] = []  # by round and place in the table
        self._idle: list[float] = []  # seconds that steps took longer after nothing
        self._timer = StepTimer(llm)

    def another(self) -> None:
        """Time every step once more."""
        _, prefill, (context, *_) = self._axes
        self._found.append([self._timer.seconds(*place) for place in product(*self._axes)])
        # Of the shortest prompt: of long steps the noise would be more than the difference.
        self._idle += [
            self._timer.after_idling(tokens, context) - self._timer.seconds(0, tokens, context)
            for tokens in prefill[1:2] * IDLE_TIMES
        ]
        self._llm.reset_prefix_cache()  # its blocks no longer hold what their hashes say

    def table(self) -> dict[str, Any]:
        engine, (rows, prefill, contexts) = self._llm.engine, self._axes
        shape = (len(rows), len(prefill), len(contexts))
        return {
            "bench": "steps",
            **surroundings(),
            "schedule": msgspec.to_builtins(engine.schedule),
            "cache": msgspec.to_builtins(engine.cache),
            "depth": self._depth,
            "token_bytes": token_bytes(self._llm),
            "rounds": len(self._found),
            "idle_seconds": max(float(np.median(self._idle or [0.0])), 0.0),
            "decode_rows": rows,
            "prefill_tokens": prefill,
            "contexts": contexts,
            "seconds": np.median(self._found, axis=0).reshape(shape).tolist(),
        }


def axes(llm: LLM) -> tuple[list[int], list[int], list[int]]:
    """The table's axes: decode rows (one row is left for prefill), prefill tokens in whole tiles
    and just above, contexts."""
    schedule = llm.engine.schedule
    rows = doubled(1, max(schedule.max_num_seqs - 1, 1))
    tile = schedule.prefill_tile
    room = schedule.max_num_batched_tokens - schedule.max_num_seqs + 1
    far = longest(llm) - PLANS - 1
    if far < max(SHORT, tile):
        raise ConfigError(
            f"--step-table: requests have {longest(llm)} tokens each when all {rows[-1] + 1} run, "
            "which is too little to time steps. Raise max_model_len or kv_cache_memory_bytes, or "
            "lower max_num_seqs."
        )
    prefill = above_too(doubled(tile, min(room, far) // tile * tile))
    return [0, *rows], [0, *prefill], sorted({*doubled(SHORT, far)[::2], far})


def above_too(sizes: Sequence[int]) -> list[int]:
    """Each size but the last, and one token more: where a step costs its tile or bucket, the time
    jumps there, and lines between the other sizes would cut the corner."""
    return sorted({size + more for size in sizes for more in (0, 1) if size + more <= sizes[-1]})


def longest(llm: LLM) -> int:
    """Context per request when the maximum number runs."""
    schedule, cache = llm.engine.schedule, llm.engine.cache
    each = (min(cache.num_blocks) - 1) // schedule.max_num_seqs * cache.block_size
    return min(schedule.max_model_len, each)


def doubled(first: int, last: int) -> list[int]:
    """`first`, doubled repeatedly, and `last`."""
    found = [first] if first <= last else []
    while found and found[-1] * 2 < last:
        found.append(found[-1] * 2)
    return found if not found or found[-1] == last else [*found, last]


def token_bytes(llm: LLM) -> int:
    """KV cache bytes per token."""
    engine = llm.engine
    sizes = [
        sum(array.nbytes for array in each_array(cache)) // count // engine.cache.block_size
        for cache, count in zip(engine.loaded.state.caches, engine.cache.num_blocks, strict=True)
    ]
    return sum(sizes)


class StepTimer:
    """Times synthetic steps with one queued ahead, as an engine does."""

    def __init__(self, llm: LLM) -> None:
        self.driver = Driver(llm)

    def seconds(self, rows: int, tokens: int, context: int) -> float:
        """Seconds between the ends of consecutive steps, while the host builds the next plan (on
        CPUs both compete for cores). 0 for an empty step."""
        if not rows + tokens:
            return 0.0
        submit, plans = self.driver.runner.submit, self.plans(rows, tokens, context, PLANS)
        before, timed = submit(next(plans)), submit(next(plans))
        before.result()
        began = time.perf_counter()
        behind = submit(next(plans))
        timed.result()
        ended = time.perf_counter()
        behind.result()
        return ended - began

    def after_idling(self, tokens: int, context: int) -> float:
        """Seconds of a prefill step that arrives at an idle engine."""
        submit, plans = self.driver.runner.submit, self.plans(0, tokens, context, PLANS - 1)
        time.sleep(IDLE)
        began = time.perf_counter()
        timed, behind = submit(next(plans)), submit(next(plans))
        timed.result()
        ended = time.perf_counter()
        behind.result()
        return ended - began

    def plans(self, rows: int, tokens: int, context: int, steps: int) -> Iterator[Plan]:
        """Plans that decode every row and prefill the same chunk of one more row, while the cache
        has room; the last one only decodes."""
        before = min(context, longest(self.driver.llm) - tokens - 1)
        lengths = [context + steps] * rows + ([before + tokens + 1] if tokens else [])
        started = [
            NewRow(row, packed_tokens([1] * (context - 1)), context - 1, RowSampling())
            for row in range(rows)
        ]
        chunk = []
        if tokens:
            whole = packed_tokens([1] * (before + tokens))
            started.append(NewRow(rows, whole, before + tokens, RowSampling()))
            chunk = [Entry(rows, before, tokens)]
        blocks = self.blocks(lengths)
        for step in range(steps):
            decodes = [Entry(row, context - 1 + step, 1) for row in range(rows)]
            first = (started, blocks) if step == 0 else ([], [])
            if step == steps - 1:
                decodes = decodes or [Entry(0, before + tokens, 1)]
                yield Plan(step, Entries.of(decodes), len(decodes), *first)
            else:
                yield Plan(step, Entries.of([*decodes, *chunk]), rows, *first)

    def blocks(self, lengths: Sequence[int]) -> list[NewBlocks]:
        """Blocks of each row per group, interleaved as if rows had grown together."""
        size = self.driver.block_size
        most = -(-max(lengths) // size)
        return [
            NewBlocks(row, group, 0, tables[row][: -(-length // size)])
            for group in range(len(self.driver.groups))
            for tables in (self.driver.tables(group, len(lengths), most),)
            for row, length in enumerate(lengths)
        ]
