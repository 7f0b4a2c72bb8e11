"""Swap in or recompute the blocks of a preempted request, by measured costs.

In: seconds per block copy, measured at start; seconds per prompt token of recent steps. Out: a
decision, logged when it changes. Until both are measured, blocks are swapped in. Must not know
requests, or where blocks are.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from jengine.kvcache.hashing import group_of
from jengine.scheduler.recorder import Recorder

logger = logging.getLogger(__name__)


class CopyCosts:
    """Decides between swapping in and recomputing a preempted request's blocks."""

    def __init__(self, seconds_each: Sequence[float] = ()) -> None:
        """`seconds_each`: host-to-device copy time per block of each group; empty if not
        measured."""
        self._seconds_each = seconds_each
        self._recorder: Recorder | None = None
        self._copied: bool | None = None  # the last decision
        self.num_copied = self.num_computed = 0  # decisions

    def use(self, recorder: Recorder) -> None:
        """Read the prefill cost per token from this recorder."""
        self._recorder = recorder

    def copies(self, keys: Sequence[bytes], tokens: int) -> bool:
        """Whether to copy these blocks rather than recompute their tokens."""
        rate = None if self._recorder is None else self._recorder.seconds_of_prompt_token
        if rate is None or not self._seconds_each:
            return True
        copying = sum(self._seconds_each[group_of(key)] for key in keys)
        computing = tokens * rate
        chosen = copying <= computing
        self.num_copied += chosen
        self.num_computed += not chosen
        if chosen is not self._copied:
            self._copied = chosen
            logger.info(
                "Preempted requests are %s: for %d tokens copying takes %.2f ms, computing %.2f ms",
                "swapped in from the host's memory" if chosen else "computed again",
                tokens, copying * 1e3, computing * 1e3,
            )  # fmt: skip
        return chosen
