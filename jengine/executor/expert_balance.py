"""Assigns experts and their redundant copies to slots so that devices have equal loads. Pure
numpy.

In: how many tokens picked each expert. Out: the expert of each slot; a device has slots that follow
each other. Must not know models or steps.
"""

from __future__ import annotations

import heapq

import numpy as np


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
