"""Infers a layer's experts from tensor names and shapes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jengine.models.importing.tensors import Shape, found_names, joined, listed, refuse

ROUTER = ("gate", "router", "router.gate", "router.layer", "gate.wg")
CHOICE_BIAS = (
    "gate.e_score_correction_bias", "e_score_correction_bias", "expert_bias",
    "moe_statics.e_score_correction_bias", "gate.moe_statics.e_score_correction_bias",
)  # fmt: skip
CHOICE_ELSEWHERE = ("moe.router.expert_bias",)  # full name, since it is outside of the module
APART = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))
STACKED = (
    ("experts.gate_up_proj", "experts.down_proj"), ("input_linear.weight", "output_linear.weight"),
    ("experts.fc1.weight", "experts.fc2.weight"),
)  # fmt: skip
SHARED = ("shared_experts", "shared_expert", "shared_mlp")
SHARED_GATE = "shared_expert_gate"


@dataclass(frozen=True)
class ExpertsLayout:
    names: Mapping[str, Any]  # arguments of `Names`
    count: int
    size: int  # inner size of an expert
    shared_size: int
    shared_gate: bool
    choice_bias: bool


def experts_of(layer: Mapping[str, Shape], module: str) -> ExpertsLayout:
    """The experts of a layer. Raises CheckpointError."""
    own = {name: shape for name, shape in layer.items() if name.startswith(joined(module, ""))}
    own |= {name: layer[name] for name in CHOICE_ELSEWHERE if name in layer}
    (router,) = found_names(own, [(joined(module, name),) for name in ROUTER], "the router")
    count = own[f"{router}.weight"][0]
    names: dict[str, Any] = {"router": router}
    used = {f"{router}.weight"}
    biases = (*(joined(module, one) for one in CHOICE_BIAS), *CHOICE_ELSEWHERE)
    bias = next((one for one in biases if one in own), None)
    if bias is not None:
        names |= {"choice_bias": bias, "choice_bias_rows": len(own[bias]) > 1}
        used.add(bias)
    stacked = next((two for two in STACKED if joined(module, two[0]) in own), None)
    read = _stacked if stacked is not None else _apart
    more, size, seen = read(own, module, count, stacked or ())
    names |= more
    used |= seen
    modules = [joined(module, name) for name in SHARED]
    shared = next((one for one in modules if f"{one}.down_proj.weight" in own), None)
    shared_size, gate = 0, joined(module, SHARED_GATE)
    if shared is not None:
        both = (f"{shared}.gate_proj", f"{shared}.up_proj")
        names |= {"shared_gate_up": both, "shared_down": f"{shared}.down_proj"}
        used |= {f"{name}.weight" for name in (*both, names["shared_down"])}
        shared_size = own[f"{shared}.down_proj.weight"][1]
    has_gate = f"{gate}.weight" in own
    if has_gate:
        names["shared_gate"] = gate
        used.add(f"{gate}.weight")
    if unknown := [name for name in own if name not in used]:
        refuse(f"a layer of experts has {listed(unknown)}, which the decoder's layers have not")
    return ExpertsLayout(names, count, size, shared_size, has_gate, bias is not None)


def _apart(
    own: Mapping[str, Shape], module: str, count: int, _: tuple[str, ...]
) -> tuple[dict[str, Any], int, set[str]]:
    """Experts in separate tensors: (names, size, tensors used)."""
    experts = joined(module, "experts")
    firsts = [tuple(f"{experts}.0.{name}" for name in names) for names in APART]
    found = found_names(own, firsts, "the first expert")
    gate, up, down = APART[firsts.index(found)]
    names = {"experts": experts, "expert_gate_up": (gate, up), "expert_down": down}
    pattern = re.compile(rf"{re.escape(experts)}\.(\d+)\.({gate}|{up}|{down})\.weight")
    seen = {name for name in own if (one := pattern.fullmatch(name)) and int(one[1]) < count}
    if len(seen) != 3 * count:
        refuse(f"a layer has {len(seen)} matrices of experts, for a router of {count} experts")
    return names, own[f"{experts}.0.{down}.weight"][1], seen


def _stacked(
    own: Mapping[str, Shape], module: str, count: int, two: tuple[str, ...]
) -> tuple[dict[str, Any], int, set[str]]:
    """Experts stacked in one tensor per projection. The two shapes together determine the order of
    axes."""
    up, down = (joined(module, name) for name in two)
    (_, one, other), (_, first, second) = own[up], own[down]
    outputs_first = (one, other) == (2 * second, first)
    if not outputs_first and (one, other) != (second, 2 * first):
        refuse(f"{up} of shape {own[up]} does not fit {down} of shape {own[down]}")
    layout = "outputs_first" if outputs_first else "inputs_first"
    names = {"expert_gate_up": (up,), "expert_down": down, "expert_layout": layout}
    return names, second if outputs_first else first, {up, down}
