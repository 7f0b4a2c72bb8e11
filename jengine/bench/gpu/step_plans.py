"""Plans for an idle engine: decode rows, optionally beside a prefill.

In: an engine. Out: plans that claim contexts which were never computed, as those of `Driver` do.
"""

from __future__ import annotations

from jengine.bench.driver import Driver, grown_tables
from jengine.plan import (
    NOTHING,
    Entries,
    Entry,
    NewBlocks,
    NewRow,
    Plan,
    RowSampling,
    packed_tokens,
)


class StepPlans:
    """Plans of up to `rows` decodes at one context, and of one row that is prefilled repeatedly."""

    def __init__(
        self, driver: Driver, rows: int, context: int, prompt_tokens: int, steps: int
    ) -> None:
        self.driver, self.rows, self.context = driver, rows, context
        self.prompt_tokens = prompt_tokens
        self.longest = driver.llm.engine.schedule.max_model_len
        self.pages = driver.pages(max(context, prompt_tokens), steps)
        self.number = 0

    @property
    def fit(self) -> bool:
        """Whether this fits the cache, the rows and max_model_len."""
        everyone = self.rows + bool(self.prompt_tokens)
        schedule = self.driver.llm.engine.schedule
        return (
            everyone <= schedule.max_num_seqs
            and max(self.context, self.prompt_tokens) < self.longest
            and all(everyone * self.pages < blocks for blocks in self.driver.blocks)
        )

    def first(self) -> Plan:
        """A plan that starts every row and decodes all of them."""
        lengths = [self.context - 1] * self.rows + [self.prompt_tokens] * bool(self.prompt_tokens)
        new_rows = [
            NewRow(row, packed_tokens([1] * length), length, RowSampling())
            for row, length in enumerate(lengths)
        ]
        new_blocks = []
        for group, blocks in enumerate(self.driver.blocks):
            tables = grown_tables(blocks, len(lengths), self.pages)
            new_blocks += [NewBlocks(row, group, 0, table) for row, table in enumerate(tables)]
        plan = self.decode(self.rows)
        return Plan(plan.step, plan.entries, self.rows, new_rows, new_blocks)

    def decode(self, rows: int) -> Plan:
        """The next decode plan, of the first `rows` rows."""
        return Plan(self._next(), Entries.of(self._decodes(rows)), rows)

    def mixed(self) -> Plan:
        """The next plan of all decodes and the prefill."""
        prompt = Entry(self.rows, 0, self.prompt_tokens, NOTHING)
        return Plan(self._next(), Entries.of([*self._decodes(self.rows), prompt]), self.rows)

    def _decodes(self, rows: int) -> list[Entry]:
        start = min(self.context - 1 + self.number, self.longest - 1)
        return [Entry(row, start, 1) for row in range(rows)]

    def _next(self) -> int:
        self.number += 1
        return self.number - 1
