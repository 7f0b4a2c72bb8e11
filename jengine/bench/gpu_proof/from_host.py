"""CPU offload in compiled steps: which bytes are copied from the host, and whether copies overlap
compute.

In: shapes of leaves, a program's text and its list of thunks. Out: shapes for such a program, and
bytes and counts of its copies.
"""

from __future__ import annotations

import math
import re
from typing import Any

import jax
from jax.sharding import NamedSharding

from jengine.assembly.host_weights import offloaded
from jengine.bench.gpu_proof.cases import StepCase
from jengine.config import ModelConfig
from jengine.runner.step.leaves import LeafOrder
from jengine.weights.abstract import abstract_model
from jengine.weights.stage_places import StagePlaces, layer_of
from sharding.placement import HOST

# An array that a copy brings from the host's memory, which XLA calls space 5.
FROM_HOST = re.compile(
    r"= \((\w+?)(\d+)\w*\[([\d,]*)\]\{[\d,]*\}, \w+\[[\d,]*\]\{[^}]*S\(5\)\}.* copy-start\("
)
BEGIN = re.compile(r"\d+: kAsyncStart .*async_id=(\d+)")
END = re.compile(r"\d+: kAsyncDone .*async_id=(\d+)")
COPY = re.compile(r" +\d+: kCopy ")
WORK = re.compile(r"\d+: (?:kCommandBuffer|kGemm|kCustomKernel|kCublasLtMatmul)")


class OnHost(NamedSharding):
    """Host-memory sharding for absent devices, which report no memory kinds."""

    @property
    def memory_kind(self) -> str:
        return HOST

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OnHost) and super().__eq__(other)

    def __hash__(self) -> int:
        return hash((HOST, super().__hash__()))


def places_for(
    case: StepCase, config: ModelConfig, places: StagePlaces, matmuls: Any
) -> StagePlaces:
    """Shardings of parameters, with as many layers on the host as the case says."""
    if not case.on_host:
        return places
    return offloaded(case.on_host, abstract_model(config), places, matmuls)


def shapes_for(order: LeafOrder) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Abstract leaves for a compiler without devices."""
    return tuple(
        jax.ShapeDtypeStruct(
            one.shape, one.dtype, sharding=OnHost(one.sharding.mesh, one.sharding.spec)
        )
        if layer_of(name) in order.places.on_host
        else one
        for name, one in zip(order.names, order.shapes(), strict=True)
    )


def host_facts(text: str, thunks: list[str]) -> dict[str, float]:
    """Bytes a step copies from the host, and the number of copies that no kernel overlaps."""
    copies, beside = copies_beside_work(thunks)
    gb = round(copied_from_host(text) / 1e9, 3)
    return {"host_gb": gb, "host_copies": copies, "late_copies": copies - beside}


def copied_from_host(text: str) -> int:
    """Bytes that a program copies from host memory."""
    return sum(
        math.prod(int(size) for size in sizes.split(",") if size) * int(bits) // 8
        for _, bits, sizes in FROM_HOST.findall(text)
    )


def copies_beside_work(thunks: list[str]) -> tuple[int, int]:
    """Number of asynchronous copies, and how many of them overlap kernels."""
    under_way: dict[str, bool] = {}  # whether kernels have run since
    copies = beside = 0
    for line in thunks:
        begun, ended = BEGIN.match(line), END.match(line)
        if begun:
            under_way[begun[1]] = False
        elif COPY.match(line):
            copies += 1
        elif WORK.match(line):
            under_way = dict.fromkeys(under_way, True)
        elif ended:
            beside += under_way.pop(ended[1])
    return copies, beside
