"""Scheduling orders: who runs first, and who is preempted when KV blocks run out.

In: a policy: a key of `ORDERS`, or `package.module:Class` naming a subclass of `Order`. Out: its
order, for the waiting queue, the planner and routers. Must not know queues, blocks or replicas.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jengine.errors import ConfigError, nearest_name
from jengine.import_paths import imported

if TYPE_CHECKING:  # flags read this table, and a help text imports no numpy
    from jengine.request import Request, WireRequest


class Order(ABC):
    """One per scheduler, constructed without arguments. Sort keys must be mutually comparable;
    smaller runs first, ties go to the earlier arrival."""

    @abstractmethod
    def arrived(self, request: Request) -> Any:
        """Sort key of an arriving request. An exception refuses the request."""

    def restored(self, request: Request) -> Any:
        """Sort key of a preempted request."""
        return self.arrived(request)

    def victim(self, running: Sequence[Request]) -> Request:
        """Choose the request to preempt. `running` is in order of start."""
        return max(reversed(running), key=self.arrived)

    def delayed_by(self, wire: WireRequest) -> int | None:
        """For routers: only requests with at most this `priority` value can delay the request;
        None: all can."""
        return None


class ByArrival(Order):
    """First come, first served. Preempts the most recently started request, which then resumes
    first."""

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
    """Instantiate the order of a policy, importing its module if it is not built in."""
    kind = ORDERS.get(policy) or _imported(policy)
    try:
        return kind()
    except TypeError as error:  # it is abstract, or wants arguments
        raise ConfigError(f"scheduling_policy={policy!r}: {error}.") from error


def _imported(policy: str) -> type[Order]:
    if ":" not in policy:
        known = ", ".join(map(repr, ORDERS))
        raise ConfigError(
            f"scheduling_policy={policy!r}: expected {known} or 'package.module:Class'."
            f"{nearest_name(policy, tuple(ORDERS))}"
        )
    found = imported("scheduling_policy", policy)
    if not (isinstance(found, type) and issubclass(found, Order)):
        raise ConfigError(
            f"scheduling_policy={policy!r} is no class derived from jengine.scheduler.orders.Order."
        )
    return found
