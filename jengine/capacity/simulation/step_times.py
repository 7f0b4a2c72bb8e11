"""Seconds per step: what a step's plan asks of a replica's devices, and who says how long it takes.

In: plans. Out: a StepLoad. Must not know requests or clocks.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from jengine.plan import Plan


class StepLoad(NamedTuple):
    """Token counts of one run of a step: all that a model of step time may use."""

    decode_rows: int
    decode_context: int  # tokens that all decodes read together
    prefill_tokens: int
    prefill_start: int  # tokens before each prefill token's chunk, summed over prefill tokens
    prefill_read: int  # tokens that all chunks read together
    attended: int  # pairs of a prefill token and one that it attends to
    sampled: int  # rows that get a token


class StepTimes(Protocol):
    """Model of step times."""

    def seconds(self, load: StepLoad) -> float:
        """Duration of a step, or of one of its stages in a pipeline."""

    def ends(self, load: StepLoad, at: float, runs: int, until: float) -> list[float]:
        """End times of up to `runs` consecutive runs of a step that begins at `at`; several only of
        pure decodes, each of which reads one token more per run. Stops after the first end later
        than `until`. Equal to the bit to adding up `seconds`, as `stepwise` does."""


def load_of(plan: Plan) -> StepLoad:
    """Load of a plan's first run."""
    columns = plan.entries.columns.tolist()
    starts, lengths, count = columns[1], columns[2], plan.num_decodes
    if count == len(starts):
        return pure_decode(count, sum(starts) + count)
    tokens = before = read = attended = 0
    for start, length in zip(starts[count:], lengths[count:], strict=True):
        tokens += length
        before += length * start
        read += start + length
        attended += length * start + length * (length + 1) // 2
    sampled = sum(columns[3])
    return StepLoad(count, sum(starts[:count]) + count, tokens, before, read, attended, sampled)


def pure_decode(rows: int, context: int) -> StepLoad:
    """Load of a decode-only step with `context` tokens in total."""
    return StepLoad(rows, context, 0, 0, 0, 0, rows)


def stepwise(times: StepTimes, load: StepLoad, at: float, runs: int, until: float) -> list[float]:
    """`StepTimes.ends`, computed run by run."""
    ends: list[float] = []
    while len(ends) < runs and at <= until:
        at += times.seconds(later(load, len(ends)) if ends else load)
        ends.append(at)
    return ends


def later(load: StepLoad, runs: int) -> StepLoad:
    """Load of a decode-only step `runs` runs later."""
    return load._replace(decode_context=load.decode_context + runs * load.decode_rows)
