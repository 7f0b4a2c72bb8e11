"""Orders of requests: who runs first, and who gives way where the KV cache is full.

In: a policy: a key of `ORDERS`, or `package.module:Class`, a class derived from `Order`. Out: its
order, for the waiting queue, the planner and routers. Must not know queues, blocks or replicas.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jengine.errors import ConfigError, nearest_name

if TYPE_CHECKING:  # flags read this table, and a help text imports no numpy
    from jengine.request import Request, WireRequest


class Order(ABC):
    """One per scheduler, made without arguments. Keys of all requests can be compared; the smallest
    is the first, and of equal ones the request that arrived first."""

    @abstractmethod
    def arrived(self, request: Request) -> Any:
        """The key of a request that has just arrived. An exception refuses the request."""

    def restored(self, request: Request) -> Any:
        """The key of a request that has lost its row."""
        return self.arrived(request)

    def victim(self, running: Sequence[Request]) -> Request:
        """The request that is preempted where blocks are short. They are given as they started."""
        return max(reversed(running), key=self.arrived)

    def delayed_by(self, wire: WireRequest) -> int | None:
        """For routers: requests of a larger `priority` value than this do not delay the request;
        None: all requests do."""
        return None


class ByArrival(Order):
    """First come, first served. The last one started is preempted first, and resumes first."""

    def __init__(self) -> None:
        self._last = self._first = 0

    def arrived(self, request: Request) -> int:
        self._last += 1
        return self._last

    def restored(self, request: Request) -> int:
        self._first -= 1
        return self._first

    def victim(self, running: Sequence[Request]) -> Request:
        return running[-1]


class ByUrgency(Order):
    """The smallest `Request.urgency` first."""

    def arrived(self, request: Request) -> Any:
        return request.urgency

    def delayed_by(self, wire: WireRequest) -> int:
        return wire.priority


ORDERS: dict[str, type[Order]] = {"fcfs": ByArrival, "priority": ByUrgency}


def order_of(policy: str) -> Order:
    """The order of a policy. Imports the module of one that is not built in."""
    kind = ORDERS.get(policy) or _imported(policy)
    try:
        return kind()
    except TypeError as error:  # it is abstract, or wants arguments
        raise ConfigError(f"scheduling_policy={policy!r}: {error}.") from error


def _imported(policy: str) -> type[Order]:
    module, _, name = policy.partition(":")
    if not (module and name):
        known = ", ".join(map(repr, ORDERS))
        raise ConfigError(
            f"scheduling_policy={policy!r}: expected {known} or 'package.module:Class'."
            f"{nearest_name(policy, tuple(ORDERS))}"
        )
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"scheduling_policy={policy!r} cannot be imported: {error}. Every process of the "
            "engine must find its package."
        ) from error
    if not (isinstance(found, type) and issubclass(found, Order)):
        raise ConfigError(
            f"scheduling_policy={policy!r}: {name} is no class derived from "
            "jengine.scheduler.orders.Order."
        )
    return found
