"""Recurrent layers of the scripted executor: what a unit of their cache groups holds is the mark of
the text whose state it stands for. What a row writes no other row reads in the same step, so rows
may run in any order."""

from __future__ import annotations

from collections.abc import Sequence

from jengine.config import CacheConfig
from tests.executor.scripted_rows import MirrorRow


class ScriptedStates:
    """The states of all recurrent groups."""

    def __init__(self, cache: CacheConfig) -> None:
        self._block_size = cache.block_size
        self.held: dict[int, dict[int, int]] = {
            index: {} for index, group in enumerate(cache.groups) if group.spec.kind == "recurrent"
        }

    def read(self, rows: Sequence[MirrorRow]) -> None:
        """Read the states of these rows, whose tokens run."""
        for index, held in self.held.items():
            for mirror in rows:
                start = mirror.ran[0]
                if start:
                    unit = mirror.tables[index][(start - 1) // self._block_size]
                    assert held.get(unit) == mirror.run_marks()[start - 1], (
                        f"group {index}: unit {unit} holds another state than that of {start} "
                        "tokens"
                    )

    def write(self, rows: Sequence[MirrorRow]) -> None:
        """Write the states after the tokens that have run and count: that of the last one, or,
        where some were drafts, those of each."""
        for index, held in self.held.items():
            written: dict[int, tuple[MirrorRow, int]] = {}
            readers = self._readers(index, rows)
            for mirror in rows:
                start, end = mirror.ran[0], mirror.computed
                assert end is not None, "a row has run"
                for place in range(start if mirror.drafts else end - 1, end):
                    unit = mirror.tables[index][place // self._block_size]
                    assert unit != 0, "a state is written to the null unit"
                    owner, _ = written.get(unit, (mirror, 0))
                    assert owner is mirror, f"two rows write to unit {unit}"
                    others = [row for row in readers.get(unit, ()) if row is not mirror]
                    assert not others, f"a row writes to unit {unit}, which another one reads"
                    written[unit] = mirror, mirror.marks[place]
            held.update({unit: mark for unit, (_, mark) in written.items()})

    def _readers(self, index: int, rows: Sequence[MirrorRow]) -> dict[int, list[MirrorRow]]:
        """The rows that have read each unit of a group."""
        readers: dict[int, list[MirrorRow]] = {}
        for mirror in rows:
            start = mirror.ran[0]
            if start:
                unit = mirror.tables[index][(start - 1) // self._block_size]
                readers.setdefault(unit, []).append(mirror)
        return readers
