"""Memo of the last request that did not fit, so that it is not looked up again at every step.

In: a refusal, and the free units of each group. Out: whether the same request would be refused
again. Must not know how demands are computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import gt
from typing import NamedTuple

from jengine.kvcache.group_cache import GroupCache
from jengine.kvcache.prefix_lookup import PrefixLookup
from jengine.request import Request


class RefusedRequest(NamedTuple):
    """A request that did not fit, and its demand per group."""

    request: Request
    num_known: int
    weights_version: int
    hit: int
    demands: list[int]


def any_lacks(groups: Sequence[GroupCache], demands: Sequence[int]) -> bool:
    """Whether a group has fewer free units than demanded."""
    return any(map(gt, demands, (group.num_free for group in groups)))


class LastRefusal:
    def __init__(self, groups: Sequence[GroupCache], prefixes: PrefixLookup) -> None:
        self._groups, self._prefixes = groups, prefixes
        self._last: RefusedRequest | None = None

    def note(self, request: Request, hit: int, demands: list[int]) -> None:
        version = self._prefixes.weights_version
        self._last = RefusedRequest(request, request.num_known, version, hit, demands)

    def forget(self) -> None:
        """Drop the memo: free units have changed, so the request may fit."""
        self._last = None

    def still_holds(self, request: Request) -> bool:
        """Whether this request would be refused again: its demand falls only if the block after its
        prefix hit becomes cached."""
        last, version = self._last, self._prefixes.weights_version
        if last is None or last.request is not request:
            return False
        if (last.num_known, last.weights_version) != (request.num_known, version):
            return False
        if not any_lacks(self._groups, last.demands):
            return False
        return not self._prefixes.has_grown(request, last.hit)
