"""Timeouts, address and secret of multi-process engines. No jax."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NoReturn

from jengine.errors import ConfigError, nearest_name

BEATS_IN_SILENCE = 5
# Refused: the channel listens on one network, not on every address of the host.
NO_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 - refused


@dataclass
class Direction:
    """Marks an engine of which only the first process has requests."""

    # Called with the reason before the first process ends all.
    observers: list[Callable[[str], None]] = field(default_factory=list)
    # Ends every process of the engine. None: there are no others, or no connections yet.
    end_all: Callable[[str], NoReturn] | None = None


@dataclass(frozen=True)
class MultihostSettings:
    """Times are in seconds. Must be equal in every process."""

    # The leader's address, to which followers connect. None: the local address that routes to JAX's
    # coordinator.
    address: str | None = None
    # Deadline for every process to create its engine.
    meet: float = 300.0
    # A process without a heartbeat for this long is considered dead.
    silence: float = 10.0
    # A longer step is considered stuck, even if every process sends heartbeats.
    stuck: float = 600.0
    # Steps between comparisons of the processes' sampled tokens.
    compare_every: int = 16
    # Secret known to all processes in advance and never sent. None: the leader generates one and
    # publishes it through JAX's coordination service, which answers any client.
    secret: str | None = field(default=None, repr=False)

    @property
    def beat(self) -> float:
        """The interval between heartbeats."""
        return self.silence / BEATS_IN_SILENCE

    @classmethod
    def checked(
        cls, given: Mapping[str, Any] | None, secret: str | None = None
    ) -> MultihostSettings:
        """Parse the user's mapping. Raises ConfigError for unknown names and impossible values."""
        given = given or {}
        known = [item.name for item in fields(cls) if item.name != "secret"]
        for name, value in given.items():
            if name not in known:
                raise ConfigError(
                    f"multihost has no key {name!r}. Known: {', '.join(known)}."
                    f"{nearest_name(str(name), known)}"
                )
            if name == "address":
                fits = value is None or (isinstance(value, str) and value not in NO_ADDRESS)
            else:
                whole = name == "compare_every"
                kinds = int if whole else (int, float)
                fits = isinstance(value, kinds) and not isinstance(value, bool) and value > 0
            if not fits:
                raise ConfigError(
                    f"multihost[{name!r}]={value!r}: expected "
                    + ("one address of process 0." if name == "address" else "a number above 0.")
                )
        return cls(**given, secret=secret)
