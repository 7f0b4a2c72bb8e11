"""Compares the reports of all processes before they act, and names those that differ.

In: one report a process. Out: None, or a sentence that says who differs and where first.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping

from jengine.executor.multihost.messages import Report

DIGEST_SIZE = 16
# Descriptions of what a process is doing, for the error in a process that does something else.
ACTIVITIES = {
    "settings": "building an engine",
    "weights": "reading or replacing parameters",
    "cache": "sizing the cache",
    "requests": "generating",
    "calls": "calling workers",
}


def digest_of(*parts: bytes) -> bytes:
    """A short digest that differs for different parts."""
    digest = hashlib.blake2b(digest_size=DIGEST_SIZE)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


def problem_in(reports: Mapping[int, Report]) -> str | None:
    """The disagreement between the processes, or None."""
    usual = _usual(reports)
    odd = {rank: report for rank, report in reports.items() if not same(report, usual)}
    if not odd:
        return None
    alike = [rank for rank in reports if rank not in odd]
    rank, report = next(iter(odd.items()))
    rest = list(odd)[1:]
    verb = "differs" if len(rest) == 1 else "differ"
    others = f"; {plural(rest)} {listed(rest)} {verb} as well" if rest else ""
    return (
        f"process {rank} differs from {plural(alike)} {listed(alike)}: "
        f"{difference(report, usual)}{others}. Every process must do the same in the same order."
    )


def same(one: Report, other: Report) -> bool:
    """Whether two processes are about to do the same."""
    return (one.subject, one.names, one.digests) == (other.subject, other.names, other.digests)


def _usual(reports: Mapping[int, Report]) -> Report:
    """What most processes are about to do; without a majority, what the leader is about to do."""
    keys = {rank: (r.subject, tuple(r.names), tuple(r.digests)) for rank, r in reports.items()}
    # Counter keeps the order of its first keys, and the leader's report is the first.
    (key, _), *_ = Counter(keys.values()).most_common(1)
    return next(report for rank, report in reports.items() if keys[rank] == key)


def difference(odd: Report, usual: Report) -> str:
    """The first difference between two reports."""
    if odd.subject != usual.subject:
        return f"it is {ACTIVITIES[odd.subject]} while the others are {ACTIVITIES[usual.subject]}"
    if len(odd.names) != len(usual.names):
        return f"it has {len(odd.names)} {odd.subject} where the others have {len(usual.names)}"
    rows = zip(odd.names, usual.names, odd.digests, usual.digests, strict=True)
    for name, other, digest, expected in rows:
        if name != other:
            return f"it has {name!r} among its {odd.subject} where the others have {other!r}"
        if digest != expected:
            return f"its {odd.subject} differ first at {name!r}"
    raise AssertionError("these reports are the same")


def listed(ranks: list[int]) -> str:
    """1, 2 and 3."""
    *most, last = map(str, ranks)
    return f"{', '.join(most)} and {last}" if most else last


def plural(ranks: list[int]) -> str:
    """The word before a list of processes."""
    return "process" if len(ranks) == 1 else "processes"
