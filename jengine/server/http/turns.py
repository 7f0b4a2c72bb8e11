"""The order in which new requests begin, between the tokens of running streams.

In: what begins each request. Out: calls of it on the event loop, first come, first served. The next
request begins when the one before is in the engine's queue, and none while tokens are on their way
to their streams. A request costs as much as the tokens of thirty streams, in several threads that
wait for one interpreter, and often many come together: the tokens of a step waited for all of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Protocol

End = Callable[[], None]
Begin = Callable[[End], object]
# Seconds of the longest turn: what takes long, such as a long prompt, holds up no other request.
LONGEST = 0.002


class OutputFlow(Protocol):
    """The tokens of running streams."""

    @property
    def outputs_under_way(self) -> bool:
        """Whether tokens have come from the engine that their streams do not have yet."""
        ...

    def after_outputs(self, call: Callable[[], object]) -> None:
        """Call this on the running event loop when the streams have sent these tokens."""
        ...


def no_turn() -> None:
    """The end of no turn: the request began without one."""


# Ends the turn of the request that a task answers. Twice is harmless.
end_turn: ContextVar[End] = ContextVar("end_turn", default=no_turn)


class RequestTurns:
    """Queue of requests that have not begun."""

    def __init__(self, flow: OutputFlow) -> None:
        self._flow = flow
        self._waiting = deque[Begin]()
        self._turn: asyncio.TimerHandle | None = None  # ends the turn in progress
        self._due = False  # `_next` or `_go_on` will be called
        self._number = 0  # of that turn
        self._owed = 0  # requests that begin before the next tokens
        self._context = copy_context()  # else each request would begin in the one's before

    def enter(self, begin: Begin) -> None:
        """Have a request begin in its turn. It is given a function that ends the turn."""
        self._waiting.append(begin)
        self._schedule()

    def _schedule(self) -> None:
        if self._due or self._turn is not None or not self._waiting:
            return
        self._due = True
        if self._owed or not self._flow.outputs_under_way:
            asyncio.get_running_loop().call_soon(self._next)
        else:
            self._flow.after_outputs(self._go_on)

    def _go_on(self) -> None:
        # Where the next tokens are under way already, the server cannot keep up: what waits goes
        # first, and a stream gets what has come meanwhile at once, which costs less.
        self._owed = len(self._waiting) if self._flow.outputs_under_way else 1
        self._next()

    def _next(self) -> None:
        self._due = False
        self._owed = max(self._owed - 1, 0)
        self._number += 1
        end = partial(self._end, self._number)
        self._turn = asyncio.get_running_loop().call_later(LONGEST, end)
        context = self._context.copy()
        context.run(end_turn.set, end)
        context.run(self._waiting.popleft(), end)
        if self._owed:
            end()

    def _end(self, number: int) -> None:
        if self._turn is not None and number == self._number:
            self._turn.cancel()
            self._turn = None
            self._schedule()
