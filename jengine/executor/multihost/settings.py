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
    """Marks an engine whose first process alone has requests; the others only run its plans."""

    # Told why, before the first process ends with all others.
    observers: list[Callable[[str], None]] = field(default_factory=list)
    # Ends every process of the engine. None: the first process is alone, or it has not met them.
    end_all: Callable[[str], NoReturn] | None = None


@dataclass(frozen=True)
class MultihostSettings:
    """Times are in seconds. Must be equal in every process."""

    # The leader's own address that the others connect to. None: the one it reaches JAX's
    # coordinator from.
    address: str | None = None
    # Until every process has begun its engine.
    meet: float = 300.0
    # A process without a heartbeat for this long is taken for dead.
    silence: float = 10.0
    # A step that takes longer is taken for stuck, even if every process sends heartbeats.
    stuck: float = 600.0
    # Every so many steps the sampled tokens of all processes are compared.
    compare_every: int = 16
    # Secret shared by all processes in advance and never sent. None: the leader
    # makes one and tells it through JAX's coordination service, which answers any client.
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
