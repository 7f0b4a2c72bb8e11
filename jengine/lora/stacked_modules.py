"""PEFT's `target_parameters` for MoE layers: one pair of matrices for a parameter [experts, ...].

PEFT wraps the experts module once per parameter, so tensor names identify the parameter only
together with adapter_config.json: of two, the inner (`experts.base_layer`) is `gate_up_proj` and
the outer (`experts`) is `down_proj`; a single one is `experts`. A is [experts x rank, inputs] and B
[outputs, rank x experts], whichever way the parameter itself is stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from jengine.errors import CheckpointError

if TYPE_CHECKING:
    from jengine.lora.peft_files import Place

INNER = ".base_layer"
# Our weight in a MoE block -> transformers' name of the parameter.
PARAMETERS = {"gate_up": "gate_up_proj", "down": "down_proj"}


class StackedModule(NamedTuple):
    """The parameter that a stacked PEFT module adapts, and per expert the checkpoint modules it
    covers, in the order of its outputs."""

    parameter: str
    experts: tuple[tuple[str, ...], ...]


def stacked_modules(
    places: Mapping[str, tuple[Place, ...]],
    modules: Sequence[str],
    parameters: Sequence[str],
    where: str,
) -> dict[str, StackedModule]:
    """PEFT modules that adapt all experts at once. `parameters` is target_parameters. Raises
    CheckpointError if it does not identify the parameter of a module."""
    known = _by_parameter(places)
    found: dict[str, StackedModule] = {}
    for module in modules:
        prefix = module.removesuffix(INNER)
        own = known.get(prefix)
        if own is None or module in places:
            continue
        targets = [name for name in own if any(_is_named(prefix, name, one) for one in parameters)]
        if prefix + INNER in modules:
            name = PARAMETERS["gate_up" if module != prefix else "down"]
        elif len(targets) == 1:
            name = targets[0]
        else:
            raise CheckpointError(
                f"{where}: {module!r} adapts a parameter of all experts, but target_parameters="
                f"{list(parameters)} in adapter_config.json does not say which of "
                f"{', '.join(own)}."
            )
        found[module] = StackedModule(f"{prefix}.{name}", tuple(map(tuple, own[name])))
    return found


def _by_parameter(
    places: Mapping[str, tuple[Place, ...]],
) -> dict[str, dict[str, list[list[str]]]]:
    """Experts module -> parameter -> modules of each expert."""
    found: dict[str, dict[str, list[list[str]]]] = {}
    for name, own in places.items():
        place = own[0]
        parameter = PARAMETERS.get(place.path.rpartition(".")[2])
        if place.group is None or parameter is None:
            continue
        prefix = name.rpartition(".")[0].rpartition(".")[0]
        experts = found.setdefault(prefix, {}).setdefault(parameter, [])
        if len(experts) == place.group:
            experts.append([])
        experts[place.group].append(name)
    return found


def _is_named(prefix: str, parameter: str, target: str) -> bool:
    """Whether a target_parameters entry names this parameter of a module."""
    full = f"{prefix}.{parameter}"
    return full == target or full.endswith(f".{target}")
