"""Compares the reports of all processes before they act, and names the processes that differ.

In: one report per process. Out: None, or a sentence that names the processes and the first
difference.
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
    digest = hashlib.blake2b(digest_size=DIGEST_SIZE)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


def problem_in(reports: Mapping[int, Report]) -> str | None:
    """Return a description of how the processes disagree, or None."""
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
    return (one.subject, one.names, one.digests) == (other.subject, other.names, other.digests)


def _usual(reports: Mapping[int, Report]) -> Report:
    """The report of the majority; without a majority, the leader's."""
    keys = {rank: (r.subject, tuple(r.names), tuple(r.digests)) for rank, r in reports.items()}
    # Counter keeps the order of its first keys, and the leader's report is the first.
    (key, _), *_ = Counter(keys.values()).most_common(1)
    return next(report for rank, report in reports.items() if keys[rank] == key)


def difference(odd: Report, usual: Report) -> str:
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
    *most, last = map(str, ranks)
    return f"{', '.join(most)} and {last}" if most else last


def plural(ranks: list[int]) -> str:
    return "process" if len(ranks) == 1 else "processes"
