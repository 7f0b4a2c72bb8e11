"""Doctor: whether all weights are finite; reads them once.

In: a model folder. Out: one finding that names the tensors. Safetensors only: an Orbax checkpoint
would have to be restored as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jengine.assembly.model_source import stored_format
from jengine.assembly.settings.args import EngineArgs
from jengine.cli.checks.finding import Finding
from jengine.errors import JengineError
from jengine.weights.folder import open_checkpoint
from jengine.weights.resolve import resolve_model
from jengine.weights.safetensors_file import READABLE
from jengine.weights.stored_parameter import TypedTensor

CHUNK = 1 << 22  # values checked at a time
MOST_NAMED = 8


def check(name: str, settings: Mapping[str, Any]) -> Finding:
    try:
        args = EngineArgs.checked("jengine", model=name, **settings)
        folder = resolve_model(args.model, args.hub)
        if stored_format(args.load_format, folder) != "safetensors":
            return Finding("note", "values", "not checked: the weights are not safetensors")
        tensors = open_checkpoint(folder)
        counts = {name: numbers_not_finite(tensor) for name, tensor in tensors.items()}
    except JengineError as error:
        return Finding("problem", "values", str(error))
    bad = {name: count for name, count in counts.items() if count}
    if not bad:
        return Finding("OK", "values", f"all numbers of {len(tensors)} tensors are finite")
    named = ", ".join(f"{name} ({count:,})" for name, count in list(bad.items())[:MOST_NAMED])
    more = f" and {len(bad) - MOST_NAMED} more tensors" if len(bad) > MOST_NAMED else ""
    text = (
        f"numbers that are NaN or infinite in {named}{more}: requests that meet them end with an "
        "error. Convert or download the model again"
    )
    return Finding("problem", "values", text, {"not_finite": bad})


def numbers_not_finite(tensor: TypedTensor) -> int:
    """Number of NaN or infinite values; 0 for dtypes that cannot be checked."""
    if tensor.dtype not in READABLE:
        return 0
    values = tensor.read().reshape(-1)
    return sum(
        int(np.count_nonzero(~np.isfinite(values[begin : begin + CHUNK].astype(np.float32))))
        for begin in range(0, values.size, CHUNK)
    )
