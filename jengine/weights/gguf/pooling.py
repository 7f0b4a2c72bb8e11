"""Pooling type of a GGUF model.

In: a header. Out: the pooling of a sequence.
"""

from __future__ import annotations

from jengine.weights.gguf.architectures import POOLING
from jengine.weights.gguf.header import GgufHeader
from jengine.weights.gguf.metadata import Metadata

KINDS = {1: "MEAN", 2: "CLS", 3: "LAST"}


def pooling_of(header: GgufHeader) -> str | None:
    """MEAN, CLS or LAST, or None. Raises CheckpointError."""
    fields = Metadata(header)
    kind = fields.number(POOLING, 0)
    if kind not in (0, *KINDS):
        known = ", ".join(f"{number} ({name})" for number, name in KINDS.items())
        raise fields.refuse(POOLING, f"0 (none), {known}: heads that rank are not read")
    return KINDS.get(kind)
