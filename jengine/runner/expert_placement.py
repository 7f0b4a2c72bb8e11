"""Expert placement (EPLB): moves MoE experts to other slots, between two steps.

In: a loaded model, and the expert of each slot in every MoE layer. Out: the same model with its
weights moved. Must not know the experts' load.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import jax
import numpy as np

from jengine.errors import RequestError
from jengine.quantization.placed_experts import EXPERTS, moved

if TYPE_CHECKING:
    from jengine.runner.loaded_model import LoadedModel

MARK = f".{EXPERTS}"  # path suffix of the arrays that hold the expert of each slot


def expert_placement(loaded: LoadedModel) -> list[list[int]]:
    """Expert in each slot, per layer with experts."""
    found = dict(zip(loaded.order.names, loaded.leaves, strict=True))
    return [np.asarray(found[paths[0] + MARK]).tolist() for paths in placed_weights(loaded)]


def place_experts(loaded: LoadedModel, layers: Sequence[Sequence[int]]) -> list[list[int]]:
    """Move experts to these slots. Returns the previous placement."""
    weights = placed_weights(loaded)
    before = expert_placement(loaded)
    check_placement(layers, before)
    leaves = dict(zip(loaded.order.names, loaded.leaves, strict=True))
    for paths, new, old in zip(weights, layers, before, strict=True):
        if list(new) == old:
            continue
        to = np.array(new, np.int32)
        for path in paths:
            own = {
                name.removeprefix(f"{path}."): leaf
                for name, leaf in leaves.items()
                if name.startswith(f"{path}.") and name != f"{path}.bias"
            }
            where = {name: leaf.sharding for name, leaf in own.items()}
            move = jax.jit(
                partial(moved, count=max(old) + 1), out_shardings=where, donate_argnums=0
            )
            made = move(own, to)
            jax.block_until_ready(made)
            leaves.update({f"{path}.{name}": array for name, array in made.items()})
    loaded.leaves = tuple(leaves[name] for name in loaded.order.names)
    return before


def placed_weights(loaded: LoadedModel) -> list[list[str]]:
    """Paths of weights with expert slots, grouped by layer."""
    by_layer: dict[str, list[str]] = {}
    for name in loaded.order.names:
        if name.endswith(MARK):
            path = name.removesuffix(MARK)
            by_layer.setdefault(path.rpartition(".")[0], []).append(path)
    if not by_layer:
        raise RequestError(
            "place_experts: experts of this engine have no slots. Create it with enable_eplb=True."
        )
    return [by_layer[layer] for layer in sorted(by_layer, key=layer_number)]


def layer_number(path: str) -> int:
    """n of layers.n.mlp."""
    return int(path.split(".")[1])


def check_placement(layers: Sequence[Sequence[int]], now: list[list[int]]) -> None:
    """Raise RequestError for another number of layers or slots, or a layer that lacks an expert."""
    if len(layers) != len(now):
        raise RequestError(f"place_experts: {len(layers)} layers given; {len(now)} have experts.")
    for number, (new, old) in enumerate(zip(layers, now, strict=True)):
        if len(new) != len(old) or set(new) != set(old):
            raise RequestError(
                f"place_experts: layers[{number}] has {len(new)} slots with {len(set(new))} "
                f"experts; expected {len(old)} slots with each of the experts 0 to {max(old)}."
            )
