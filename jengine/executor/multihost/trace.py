"""A running digest of plans and sampled tokens, which must be equal in all processes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import msgspec

from jengine.outputs import StepOutput
from jengine.plan import Plan

DIGEST_SIZE = 16


class Trace:
    """Running digest of steps in order, due for comparison after every `every` steps."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._digest = hashlib.blake2b(digest_size=DIGEST_SIZE)
        self._steps = 0

    def add(self, plan: Plan, output: StepOutput) -> Iterator[tuple[int, bytes]]:
        """Add a finished step; yields (step number, digest) when one is due. Plans that run no step
        are not counted: processes may differ in how many they have seen."""
        self._digest.update(msgspec.msgpack.encode((plan, output.tokens.tolist())))
        self._steps += plan.runs_step
        if plan.runs_step and self._steps % self._every == 0:
            yield plan.step, self._digest.digest()
