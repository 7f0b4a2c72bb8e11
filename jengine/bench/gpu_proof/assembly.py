"""Facts from a kernel's PTX: waits for loads in loops, matrix instructions, ordering of atomics."""

from __future__ import annotations

import re
from collections.abc import Iterator

LABEL = re.compile(r"(\$\w+):")
# Loads of one or two bytes, and asynchronous copies of 16: others do not bypass the L1 cache.
NARROW, WIDE = re.compile(r"ld\.global\S*\.[bus](?:8|16)\b"), re.compile(r"cp\.async\.cg\b")
BRANCH = re.compile(r"\bbra(?:\.uni)?\s+(\$\w+);")


def facts(ptx: str) -> dict[str, int]:
    """Counts that the check compares."""
    return {
        "wgmma": ptx.count("wgmma.mma_async"),
        "tcgen05": ptx.count("tcgen05.mma"),
        "asynchronous_loops": sum("cp.async" in loop for loop in inner_loops(ptx)),
        "single_buffered_loops": sum(waits_for_all(loop) for loop in inner_loops(ptx)),
        "unordered_releases": unordered_releases(ptx),
        "narrow_loads": sum(map(len, map(NARROW.findall, inner_loops(ptx)))),
        "wide_copies": sum(map(len, map(WIDE.findall, inner_loops(ptx)))),
        "barriers": max((loop.count("bar.sync") for loop in inner_loops(ptx)), default=0),
    }


def inner_loops(ptx: str) -> Iterator[str]:
    """The text of each loop that holds no other loop.

    A loop around another waits for all loads where the inner one has ended: that is no stall per
    iteration.
    """
    lines = ptx.splitlines()
    labels = {found[1]: at for at, line in enumerate(lines) if (found := LABEL.match(line.strip()))}
    loops = [
        (labels[found[1]], at)
        for at, line in enumerate(lines)
        if (found := BRANCH.search(line)) and labels.get(found[1], at + 1) <= at
    ]
    for first, last in loops:
        if not any((a, b) != (first, last) and first <= a and b <= last for a, b in loops):
            yield "\n".join(lines[first : last + 1])


def waits_for_all(loop: str) -> bool:
    """Whether each iteration waits for the loads it has just issued (no pipelining)."""
    return re.search(r"cp\.async\.wait_(?:all|group\s+0\b)", loop) is not None


def unordered_releases(ptx: str) -> int:
    """Releasing atomics preceded by a store of the same program without a barrier in between."""
    found, ordered = 0, True
    for line in ptx.splitlines():
        if "st.global" in line:
            ordered = False
        elif "bar.sync" in line or "barrier.sync" in line:
            ordered = True
        elif re.search(r"\batom\.\S*(?:acq_rel|release)", line):
            found += not ordered
    return found
