"""Expert load balancing (EPLB): wraps an executor, counts tokens per expert, and re-places experts
across devices.

In: plans; outputs with the routed experts of each token. Out: the same plans and outputs; between
steps, the RPC `place_experts`. Must not know requests.
"""

from __future__ import annotations

import heapq
import logging
from dataclasses import dataclass

import numpy as np

from jengine.config import BalanceConfig
from jengine.executor.calls import decoded_answers, encoded_arguments
from jengine.executor.protocol import Executor, PendingOutput
from jengine.executor.read_step import ReadStep
from jengine.outputs import StepOutput
from jengine.plan import Plan

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SpreadExperts:
    """The MoE layers of a model, its experts per layer, and the number of expert-parallel
    devices."""

    layers: tuple[int, ...]
    experts: int  # per layer
    devices: int


class BalancedExperts:
    """Re-places experts every `step_interval` steps, by the routing of the last `window_size`
    steps."""

    def __init__(
        self, executor: Executor, spread: SpreadExperts, config: BalanceConfig, *, returns: bool
    ) -> None:
        self.executor = executor
        self._spread = spread
        self._config = config
        self._returns = returns  # whether outputs keep the routed experts
        self._steps = 0
        self._loads = self._no_loads()
        self.update_weights, self.call_workers = executor.update_weights, executor.call_workers
        self.health, self.shutdown = executor.health, executor.shutdown

    def submit(self, plan: Plan) -> PendingOutput:
        """Queue the step; every `step_interval` steps, re-place experts first."""
        config = self._config
        if self._steps and self._steps % config.step_interval == 0:
            self._rebalance()
        self._steps += 1
        left = config.step_interval - (self._steps - 1) % config.step_interval
        counts = left <= config.window_size
        return ReadStep(self.executor.submit(plan), lambda step: self._read(step, counts=counts))

    def _read(self, step: PendingOutput, *, counts: bool) -> StepOutput:
        output = step.result()
        if counts:
            picked = output.experts[:, list(self._spread.layers)].astype(np.int64)
            numbers = np.arange(len(self._spread.layers))[None, :, None] * self._spread.experts
            found = np.bincount((picked + numbers).ravel(), minlength=self._loads.size)
            self._loads += found.reshape(self._loads.shape)
        return output if self._returns else output._replace(experts=None)

    def _rebalance(self) -> None:
        """Send the workers a placement computed from the counted loads, and reset the counts."""
        loads, devices = self._loads, self._spread.devices
        self._loads = self._no_loads()
        if not loads.any():
            return
        slots = self._spread.experts + self._config.num_redundant_experts
        layers = [balanced(load, slots, devices) for load in loads]
        arguments = encoded_arguments("place_experts", {"layers": layers})
        (before, *_) = decoded_answers(
            "place_experts", self.executor.call_workers("place_experts", arguments)
        )
        if self._config.log_balancedness:
            logger.info(
                "Experts moved after %d steps: balancedness %.2f, %.2f with the loads so far",
                self._steps,
                mean_balancedness(loads, before, devices),
                mean_balancedness(loads, layers, devices),
            )

    def _no_loads(self) -> np.ndarray:
        return np.zeros((len(self._spread.layers), self._spread.experts), np.int64)


def mean_balancedness(loads: np.ndarray, layers: list[list[int]], devices: int) -> float:
    """Mean over the MoE layers."""
    pairs = zip(loads, layers, strict=True)
    return float(np.mean([balancedness(load, slots, devices) for load, slots in pairs]))


def balanced(loads: np.ndarray, slots: int, devices: int) -> list[int]:
    """Return the expert of each slot; device d owns a contiguous range of slots.

    Redundant slots go, one by one, to the expert with the most tokens per copy. Slots are then
    placed in descending order of load, each on the least loaded device with a free slot, preferably
    one without a copy of the same expert.
    """
    copies = copies_of(loads, slots)
    share = loads / copies
    busiest = sorted(
        (expert for expert, count in enumerate(copies) for _ in range(count)),
        key=lambda expert: -share[expert],
    )
    places = slots // devices
    own: list[list[int]] = [[] for _ in range(devices)]
    totals = np.zeros(devices)
    for expert in busiest:
        free = [device for device in range(devices) if len(own[device]) < places]
        best = min(free, key=lambda device: (expert in own[device], totals[device], device))
        own[best].append(expert)
        totals[best] += share[expert]
    return [expert for device in own for expert in sorted(device)]


def copies_of(loads: np.ndarray, slots: int) -> np.ndarray:
    """Return the number of slots per expert (at least 1), by splitting the largest load per
    copy."""
    copies = np.ones(len(loads), int)
    waiting = [(-float(load), expert) for expert, load in enumerate(loads)]
    heapq.heapify(waiting)
    for _ in range(slots - len(loads)):
        _, expert = heapq.heappop(waiting)
        copies[expert] += 1
        heapq.heappush(waiting, (-float(loads[expert]) / copies[expert], expert))
    return copies


def balancedness(loads: np.ndarray, placement: list[int], devices: int) -> float:
    """Mean device load over maximum device load: 1 if balanced."""
    slots = np.asarray(placement)
    each = loads[slots] / np.bincount(slots, minlength=len(loads))[slots]
    totals = each.reshape(devices, -1).sum(axis=1)
    return float(totals.mean() / totals.max()) if totals.max() > 0 else 1.0
