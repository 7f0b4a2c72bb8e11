"""The KV cache of the scripted executor: what is written where, and read back.

In: rows with the tokens that they just ran. Out: an assertion where a row reads another's text.
Must not know plans.
"""

from __future__ import annotations

from jengine.config import CacheConfig
from tests.executor.scripted_rows import MirrorRow


class ScriptedCache:
    """Of each group the texts up to the tokens that it holds; recurrent ones hold none."""

    def __init__(self, cache: CacheConfig) -> None:
        self._size = cache.block_size
        self._groups = cache.groups
        # Per group: (block, offset) -> mark of the text up to the token cached there.
        self.cached: list[dict[tuple[int, int], int]] = [{} for _ in cache.groups]

    def write(self, mirror: MirrorRow, start: int, length: int) -> None:
        """Cache the marks of the tokens that run; all rows write before any reads."""
        mirror.computed = start + length - len(mirror.drafts)
        mirror.ran = start, start + length
        mirror.mark_up_to(mirror.computed)
        marks = mirror.run_marks()
        for index, table in enumerate(mirror.tables):
            if self._groups[index].spec.kind == "recurrent":
                continue
            cached = self.cached[index]
            for position in range(start, start + length):
                block = table[position // self._size]
                assert block != 0, "a token is written to the null block"
                cached[block, position % self._size] = marks[position]

    def check(self, row: int, mirror: MirrorRow) -> None:
        """Every position that the tokens just run attend to must hold this row's own text."""
        (start, end), marks = mirror.ran, mirror.run_marks()
        for index, group in enumerate(self._groups):
            if group.spec.kind == "recurrent":
                continue
            for position in range(group.spec.first_read(start), end):
                place = mirror.tables[index][position // self._size], position % self._size
                found = self.cached[index].get(place)
                assert found == marks[position], (
                    f"row {row}, group {index}: position {position} in block {place[0]} holds "
                    "another text"
                )
