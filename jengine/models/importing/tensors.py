"""Tensor names of a checkpoint: searched for known modules, and split by layer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NoReturn

from jengine.errors import CheckpointError

Shape = tuple[int, ...]
LAYERS = ("layers", "h", "blocks", "encoder.layer")


def joined(module: str, name: str) -> str:
    """Name of a tensor within a module; "" is the layer itself."""
    return f"{module}.{name}" if module else name


def split_by_layer(
    shapes: Mapping[str, Shape], prefix: str
) -> tuple[str, dict[str, Shape], dict[int, dict[str, Shape]]]:
    """Prefix of the layers, tensors outside of layers, and each layer's tensors by name within the
    layer."""
    layers_name = _layers_name(shapes, prefix)
    pattern = re.compile(rf"{re.escape(prefix + layers_name)}\.(\d+)\.(.+)")
    outside: dict[str, Shape] = {}
    layers: dict[int, dict[str, Shape]] = {}
    for name, shape in shapes.items():
        found = pattern.fullmatch(name)
        if found is None:
            outside[name] = shape
        else:
            layers.setdefault(int(found[1]), {})[found[2]] = shape
    if set(layers) != set(range(len(layers))):
        refuse(f"its layers are numbered {listed(map(str, sorted(layers)))}, not from 0 on")
    return layers_name, outside, dict(sorted(layers.items()))


def _layers_name(shapes: Mapping[str, Shape], prefix: str) -> str:
    for name in LAYERS:
        if any(key.startswith(f"{prefix}{name}.0.") for key in shapes):
            return name
    refuse(f"it has no layers under one of the names {', '.join(prefix + n for n in LAYERS)}")


def found_module(layer: Mapping[str, Shape], names: Iterable[str]) -> str:
    """The first of these module names that a layer has."""
    for name in names:
        if not name or any(key.startswith(f"{name}.") for key in layer):
            return name
    refuse(f"a layer has {listed(layer)}, and nothing under {', '.join(names)}")


def found_names(
    tensors: Mapping[str, Shape], known: Iterable[tuple[str, ...]], what: str, prefix: str = ""
) -> tuple[str, ...]:
    """The first of these groups of names that is complete."""
    known = list(known)
    for names in known:
        if all(f"{prefix}{name}.weight" in tensors for name in names):
            return names
    expected = "; ".join(" + ".join(names) for names in known)
    refuse(f"{what} is not found among {listed(tensors)}: known are {expected}")


def listed(names: Iterable[str]) -> str:
    """Names for a message, the first eight of many."""
    names = list(names)
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more


def refuse(why: str) -> NoReturn:
    """Raise CheckpointError."""
    raise CheckpointError(f"the tensors are not those of a decoder that is known here: {why}.")
