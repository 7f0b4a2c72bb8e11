"""Parameters in pieces, as trainers and vLLM's `load_weights` pass them.

In: an iterable of (name, array) pairs or of mappings. Out: one mapping, and the piece that each
name came from. Must not know models.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jengine.errors import CheckpointError, UnsupportedFeature
from jengine.weights.live import named_arrays
from sharding.jax_settings import engine_context

# Stands for a file path in messages.
GIVEN = Path("the given arrays")


class Gathered(dict[str, Any]):
    """Arrays by name; `origin` names the piece of each in messages."""

    def __init__(self) -> None:
        super().__init__()
        self.origin: dict[str, Path] = {}


def gathered(params: Any, mapping: object = None) -> Any:
    """Read pieces, once and in order, under the caller's JAX settings; return anything else as is.

    A list or a tuple holds its arrays; with `mapping` it is a pytree. Arrays of other iterables are
    copied to the host, as they may be freed or overwritten when the next piece is asked for.
    """
    held = mapping is None and type(params) in (list, tuple)
    if not (held or is_stream(params)):
        return params
    found = Gathered()
    for number, piece in enumerate(params, 1):
        where = Path(f"piece {number}")
        for name, one in named_arrays(mapping_of(piece, where)).items():
            if name in found:
                raise CheckpointError(
                    f"{GIVEN}: {name!r} is in {found.origin[name]} and in {where}; expected one."
                )
            found[name] = one if held else on_host(name, one, where)
            found.origin[name] = where
    if not found:
        raise CheckpointError(f"{GIVEN}: the {type(params).__name__} has none, or was read before.")
    return found


def is_stream(params: Any) -> bool:
    """Whether this is an iterable that is neither a mapping, a text, an array nor a pytree."""
    if isinstance(params, (Mapping, str, bytes, nnx.Module)) or hasattr(params, "__dlpack__"):
        return False
    return isinstance(params, Iterable) and jax.tree_util.all_leaves([params])


def mapping_of(piece: Any, where: Path) -> Mapping[str, Any]:
    """The piece as a mapping. Raises CheckpointError."""
    if isinstance(piece, Mapping):
        return piece
    if isinstance(piece, (tuple, list)) and len(piece) == 2 and isinstance(piece[0], str):
        return {piece[0]: piece[1]}
    raise CheckpointError(
        f"{GIVEN}: {where} is a {type(piece).__name__}, expected a pair (name, array) or a mapping "
        "of names to arrays."
    )


@engine_context()
def on_host(name: str, given: Any, where: Path) -> np.ndarray:
    """A copy of the array in the host's memory."""
    array = any_array(name, given, where)
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        raise UnsupportedFeature(
            f"{where}: {name!r} is spread over several processes, so that it cannot be copied to "
            "this one's memory. Give a mapping or a list instead of an iterator."
        )
    return np.array(array)


def any_array(name: str, given: Any, where: Path) -> Any:
    """Convert to a numpy or JAX array, through DLPack if needed. Raises CheckpointError."""
    if isinstance(given, (np.ndarray, jax.Array)):
        return given
    if not hasattr(given, "__dlpack__"):
        raise CheckpointError(
            f"{where}: {name!r} is a {type(given).__name__}, expected an array of numpy, JAX "
            "or a library with DLPack."
        )
    return jnp.from_dlpack(given)
