"""Replays a recording, on this or another mesh, and compares token by token.

In: a recording, and an executor of an engine with the same cache and schedule. Out: a report. Only
requests that begin in the recording are run. Prefix hits on blocks that no recorded step computed
are prefilled first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
import numpy as np

from jengine.executor.protocol import Executor
from jengine.executor.recording import RecordedStep, Recording
from jengine.outputs import NO_TOKEN
from jengine.plan import NOTHING, Entries, Entry, NewBlocks, NewRow, Plan


class Difference(NamedTuple):
    """The first differing token of a row."""

    step: int
    row: int
    position: int
    recorded: int
    replayed: int


class ReplayReport(NamedTuple):
    """What a replay ran, and the differences found."""

    steps: int
    tokens: int
    rows: int  # requests that were run
    left_out: int  # requests that were not run
    differences: tuple[Difference, ...]
    problem: str | None = None  # the error of a step that failed again


class ReplayedPlan(NamedTuple):
    """A plan to replay, and which entries of the recorded plan it keeps."""

    plan: Plan
    kept: np.ndarray  # bool[entries that want tokens] of the recorded plan


class Selection:
    """Decides which recorded rows can be replayed, and rebuilds their plans."""

    def __init__(self, recording: Recording) -> None:
        cache, self.schedule = recording.origin.cache, recording.origin.schedule
        self.block_size = cache.block_size
        self.has_windows = any(not group.spec.keeps_all for group in cache.groups)
        self.tables: dict[int, list[list[int]]] = {}  # of rows that run, by group
        self.num_groups = len(cache.groups)
        self.filled: set[tuple[int, int]] = set()  # (group, block) computed in the replay
        self.rows = 0
        self.left_out = 0
        self._absent: set[int] = set()  # rows of requests that are left out
        self._number = 0

    def parts(self, step: RecordedStep) -> Iterator[ReplayedPlan]:
        """Plans that replay a recorded step: prefill of cached prefixes first, then the step
        itself."""
        plan = step.plan
        released = [row for row in plan.released if self.tables.pop(row, None) is not None]
        self._absent -= {*plan.released, *(new.row for new in plan.new_rows)}
        starts = {entry.row: entry.start for entry in plan.entries}
        begun: list[NewRow] = []
        for new in plan.new_rows:
            blocks = [one for one in plan.new_blocks if one.row == new.row]
            if not self._begins(new, starts[new.row], blocks):
                self._forget_blocks(blocks)
                continue
            self.rows += 1
            self.tables[new.row] = self._tables(blocks)
            if self._is_filled(new.row, starts[new.row]):
                begun.append(new)
                continue
            yield from self._prefix(new, starts[new.row], blocks, released)
            released = []
            plan = msgspec.structs.replace(
                plan, new_blocks=[one for one in plan.new_blocks if one.row != new.row]
            )
        yield self._remaining(plan, begun, released)

    def _begins(self, new: NewRow, start: int, blocks: list[NewBlocks]) -> bool:
        if new.taps or new.sampling.processors:  # users' functions are not recorded
            return False
        if not start or not self.has_windows:
            return True
        prefix = -(-start // self.block_size)
        held = {(one.group, block) for one in blocks for block in one.blocks[:prefix] if block}
        return held <= self.filled

    def _tables(self, blocks: Iterable[NewBlocks]) -> list[list[int]]:
        tables: list[list[int]] = [[] for _ in range(self.num_groups)]
        for one in blocks:
            tables[one.group] += one.blocks
        return tables

    def _is_filled(self, row: int, end: int) -> bool:
        return self._blocks_of(row, 0, end) <= self.filled

    def _blocks_of(self, row: int, start: int, end: int) -> set[tuple[int, int]]:
        first, last = start // self.block_size, -(-end // self.block_size)
        return {
            (group, block)
            for group, table in enumerate(self.tables[row])
            for block in table[first:last]
            if block
        }

    def _forget_blocks(self, blocks: Iterable[NewBlocks]) -> None:
        """Mark blocks of rows that are not replayed as not computed."""
        self.filled -= {(one.group, block) for one in blocks for block in one.blocks}

    def _prefix(
        self, new: NewRow, end: int, blocks: list[NewBlocks], released: list[int]
    ) -> Iterator[ReplayedPlan]:
        """Prefill a new row's cached prefix, in chunks that fit a step."""
        for start in range(0, end, self.schedule.largest_chunk):
            stop = min(end, start + self.schedule.largest_chunk)
            first = start == 0
            entry = Entry(new.row, start, stop - start, NOTHING)
            yield ReplayedPlan(
                Plan(
                    self._next_number(),
                    Entries.of([entry]),
                    0,
                    [new] if first else [],
                    blocks if first else [],
                    released if first else [],
                ),
                np.zeros(0, bool),
            )
        self.filled |= self._blocks_of(new.row, 0, end)

    def _remaining(self, plan: Plan, begun: list[NewRow], released: list[int]) -> ReplayedPlan:
        runs = np.isin(plan.entries.rows, list(self.tables))
        absent = set(plan.entries.rows[~runs].tolist())
        self.left_out += len(absent - self._absent)
        self._absent |= absent
        entries = [entry for entry, kept in zip(plan.entries, runs, strict=True) if kept]
        new_blocks = []
        fresh = {new.row for new in begun}
        for one in plan.new_blocks:
            if one.row not in self.tables:
                self._forget_blocks([one])
                continue
            new_blocks.append(one)
            if one.row not in fresh:
                self.tables[one.row][one.group] += one.blocks
        for entry in entries:
            self.filled |= self._blocks_of(entry.row, entry.start, entry.start + entry.length)
        kept = runs[plan.entries.wants_tokens]
        made = Plan(
            self._next_number(), Entries.of(entries), int(runs[: plan.num_decodes].sum()), begun,
            new_blocks, released, plan.repeats,
            masks=plan.masks,  # of all rows: absent rows' masks are not read
            known=[one for one in plan.known if one.row in self.tables],
            drafts=[one for one in plan.drafts if one.row in self.tables],
            next_drafts=plan.next_drafts,
        )  # fmt: skip
        return ReplayedPlan(made, kept)

    def _next_number(self) -> int:
        self._number += 1
        return self._number - 1


def replay(recording: Recording, executor: Executor) -> ReplayReport:
    """Run the replayable part of a recording, one step at a time."""
    selection = Selection(recording)
    compared = ReplayComparison()
    steps, problem = 0, None
    for step in recording.steps:
        for part in selection.parts(step):
            if not len(part.plan.entries):
                continue
            try:
                output = executor.submit(part.plan).result()
            except Exception as error:  # noqa: BLE001 - the report has it
                problem = f"{type(error).__name__}: {error}"
                break
            if len(part.kept):
                steps += 1
                compared.add(step, part, output.tokens)
        if problem is not None:
            break
    found = tuple(compared.differences.values())
    return ReplayReport(steps, compared.tokens, selection.rows, selection.left_out, found, problem)


class ReplayComparison:
    """Counts compared tokens, and keeps the first difference per row."""

    def __init__(self) -> None:
        self.tokens = 0
        self.differences: dict[tuple[int, int], Difference] = {}
        self._begun: dict[int, int] = {}  # row -> step in which its request began

    def add(self, step: RecordedStep, part: ReplayedPlan, replayed: np.ndarray) -> None:
        """Compare the tokens of one step; steps whose recorded output was never read are
        skipped."""
        plan, recorded = step.plan, step.sampled
        for new in plan.new_rows:
            self._begun[new.row] = plan.step
        if recorded is None:
            return
        recorded = recorded[part.kept]
        wanting = [entry for entry in part.plan.entries if entry.wanted]
        # With drafts, the widest entry may have been left out; columns past the width are empty.
        width = min(recorded.shape[1], replayed.shape[1])
        recorded, replayed = recorded[:, :width], replayed[:, :width]
        self.tokens += int((recorded != NO_TOKEN).sum())
        differs = recorded != replayed
        if plan.repeats > 1:  # multi-step decode ends early once every row has ended
            differs &= (recorded >= 0) & (replayed >= 0)
        for index in np.flatnonzero(differs.any(axis=1)).tolist():
            entry, run = wanting[index], int(np.flatnonzero(differs[index])[0])
            # A decode's tokens are consecutive; with drafts in flight they may have begun earlier.
            is_decode = index < part.plan.num_decodes
            position = entry.start + (run + 1 if is_decode else entry.length)
            self.differences.setdefault(
                (entry.row, self._begun.get(entry.row, -1)),
                Difference(
                    plan.step, entry.row, position, int(recorded[index, run]),
                    int(replayed[index, run]),
                ),
            )  # fmt: skip
