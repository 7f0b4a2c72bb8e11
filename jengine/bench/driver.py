"""Times decode steps for a given number of rows and context length, bypassing the scheduler.

In: an engine in which nothing runs. Out: milliseconds per step. Plans claim contexts that were
never computed, so the cache holds no valid keys and values afterwards: empty the prefix cache. The
gap of a step is the extra time of a loop that reads every step's tokens over one that only queues.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

from jengine.api.llm import LLM
from jengine.config import CacheGroup
from jengine.kvcache.block_pool import NULL_BLOCK, BlockPool
from jengine.plan import Entries, Entry, NewBlocks, NewRow, Plan, RowSampling, packed_tokens
from jengine.runner.runner import PlanRunner, StepHandle
from jengine.runner.step.group_arrays import each_array


def weight_bytes(llm: LLM) -> int:
    """Bytes of all parameters."""
    return sum(leaf.nbytes for leaf in llm.engine.loaded.leaves)


def read_bytes(llm: LLM) -> int:
    """Bytes of parameters that a step reads (of an untied embedding, only the looked-up rows)."""
    model = llm.engine.model
    if model.tie_embeddings:
        return weight_bytes(llm)
    size = llm.engine.loaded.leaves[0].dtype.itemsize
    return weight_bytes(llm) - model.vocab_size * model.hidden_size * size


def grown_tables(blocks: int, rows: int, pages: int) -> list[list[int]]:
    """Blocks that rows take from an empty pool when all generate side by side, block by block: the
    least contiguous layout, since a prefill takes its blocks at once."""
    pool, tables = BlockPool(blocks), [[NULL_BLOCK] for _ in range(rows)]
    for _ in range(pages):
        for table in tables:
            table += pool.allocate(1, table[-1])
    return [table[1:] for table in tables]


class Driver:
    """Submits synthetic plans to an engine's runner."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self.runner: PlanRunner = llm.engine.runners[0]
        self.block_size = llm.engine.cache.block_size
        self.blocks = llm.engine.cache.num_blocks
        self.groups = llm.engine.cache.groups

    def fits(self, rows: int, context: int, steps: int) -> bool:
        """Whether this many rows of this length fit the cache and max_model_len."""
        longest = self.llm.engine.schedule.max_model_len
        pages = rows * self.pages(context, steps)
        return context <= longest and all(
            (rows if is_of_states(group) else pages) < blocks
            for group, blocks in zip(self.groups, self.blocks, strict=True)
        )

    def pages(self, context: int, steps: int) -> int:
        """Blocks per row."""
        longest = min(context + 3 * steps, self.llm.engine.schedule.max_model_len)
        return -(-longest // self.block_size)

    def decode(self, rows: int, context: int, steps: int) -> dict[str, Any]:
        """Milliseconds per step: steps only queued, and steps read one by one."""
        plans = self.plans(rows, context, steps)
        first = next(plans)
        self.runner.submit(first).result()
        submitting: list[float] = []
        began = time.perf_counter()
        for _ in range(steps):
            at = time.perf_counter()
            last = self.runner.submit(next(plans))
            submitting.append(time.perf_counter() - at)
        last.result()
        queued = (time.perf_counter() - began) / steps
        reading = self.read_one_by_one(plans, steps)
        moved = read_bytes(self.llm) + self.cache_bytes(rows, context)
        return {
            "rows": rows,
            "context": context,
            "queued_ms": round(queued * 1e3, 3),
            "reading_ms": round(reading * 1e3, 3),
            "gap_ms": round((reading - queued) * 1e3, 3),
            "submit_ms": round(statistics.median(submitting) * 1e3, 3),
            "tok_s": round(rows / reading, 1),
            "read_bytes": moved,
            "gb_s": round(moved / queued / 1e9, 1),
        }

    def read_one_by_one(self, plans: Iterator[Plan], steps: int) -> float:
        """Seconds per step with one step queued ahead, as the engine runs."""
        before: StepHandle = self.runner.submit(next(plans))
        began = time.perf_counter()
        for _ in range(steps - 1):
            queued = self.runner.submit(next(plans))
            before.result()
            before = queued
        before.result()
        return (time.perf_counter() - began) / steps

    def plans(self, rows: int, context: int, steps: int) -> Iterator[Plan]:
        """Decode plans; positions stop at max_model_len."""
        everyone, pages = list(range(rows)), self.pages(context, steps)
        longest = self.llm.engine.schedule.max_model_len
        new_rows = [
            NewRow(row, packed_tokens([1] * (context - 1)), context - 1, RowSampling())
            for row in everyone
        ]
        new_blocks = []
        for group in range(len(self.groups)):
            tables = self.tables(group, rows, pages)
            new_blocks += [NewBlocks(row, group, 0, tables[row]) for row in everyone]
        for step in range(3 * steps):
            start = min(context - 1 + step, longest - 1)
            entries = Entries.of(Entry(row, start, 1) for row in everyone)
            first = (new_rows, new_blocks) if step == 0 else ([], [])
            yield Plan(step, entries, rows, *first)

    def tables(self, group: int, rows: int, pages: int) -> list[list[int]]:
        """Blocks of each row in a group; a recurrent state is one unit whatever the length."""
        if is_of_states(self.groups[group]):
            return [[1 + row] * pages for row in range(rows)]
        return grown_tables(self.blocks[group], rows, pages)

    def cache_bytes(self, rows: int, context: int) -> int:
        """Bytes of KV cache and recurrent states that a step reads."""
        caches, found = self.runner.loaded.state.caches, 0
        for group, cache, blocks in zip(self.groups, caches, self.blocks, strict=True):
            size = sum(array.nbytes for array in each_array(cache)) // blocks
            found += (
                rows * size if is_of_states(group) else rows * context * size // self.block_size
            )
        return found


def is_of_states(group: CacheGroup) -> bool:
    """Whether the group holds recurrent states, of constant size per row."""
    return group.spec.is_state
