"""Served model names.

In: an engine, and the names given on the command line. Out: whether a request's `model` is one of
them. Must not know HTTP.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from jengine.assembly.engine import Engine
from jengine.hub.names import shown_name
from jengine.server.errors import ApiError

MOST_NAMED = 20


@dataclass(frozen=True)
class ModelNames:
    """Served model names, all for the same model; responses use the first."""

    names: tuple[str, ...]
    root: str
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def of(cls, engine: Engine, given: Sequence[str]) -> ModelNames:
        """The configured names, else the model's own."""
        root = shown_name(engine.args.model)
        return cls(tuple(given) or (root,), root)

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256("\n".join(self.names).encode()).hexdigest()[:32]

    @property
    def default(self) -> str:
        """Name used in responses."""
        return self.names[0]

    def checked(self, model: str | None, also: Sequence[str] = ()) -> str:
        """Resolve `model` to the name for the response. Raises ApiError 404. `also`: names of
        adapters."""
        if model and model not in self.names:
            raise ApiError(
                404,
                f"The model `{model[:200]}` does not exist. This server has: "
                f"{', '.join([*self.names, *also][:MOST_NAMED])}.",
                param="model",
            )
        return self.default
