"""The names under which a model is served.

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
    """All names mean the same model; the first is the one in responses."""

    names: tuple[str, ...]
    root: str
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def of(cls, engine: Engine, given: Sequence[str]) -> ModelNames:
        """The names given, else the model as it was named to the engine."""
        root = shown_name(engine.args.model)
        return cls(tuple(given) or (root,), root)

    @property
    def fingerprint(self) -> str:
        """Something that is the same for the same names."""
        return hashlib.sha256("\n".join(self.names).encode()).hexdigest()[:32]

    @property
    def default(self) -> str:
        """The name in responses."""
        return self.names[0]

    def checked(self, model: str | None, also: Sequence[str] = ()) -> str:
        """The name for a response to a request for `model`; 404 if it is not served. `also` are
        other names that this server has."""
        if model and model not in self.names:
            raise ApiError(
                404,
                f"The model `{model[:200]}` does not exist. This server has: "
                f"{', '.join([*self.names, *also][:MOST_NAMED])}.",
                param="model",
            )
        return self.default
