"""Weight schemes whose methods are compiled whole."""

from __future__ import annotations

from typing import Any

from tests.compiled import compiled

COMPUTES = (
    "prepare", "unpack", "restore", "as_saved", "dequantized", "multiply", "multiply_groups",
    "lookup", "apply", "outputs_at",
)  # fmt: skip


class Compiled:
    def __init__(self, scheme: Any) -> None:
        self.scheme = scheme

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.scheme, name)
        return compiled(found) if name in COMPUTES else found
