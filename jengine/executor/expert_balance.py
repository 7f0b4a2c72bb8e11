"""Which expert is in which slot, so that devices have equal loads. Pure numpy.

In: how many tokens picked each expert. Out: the expert of each slot; a device has slots that follow
each other. Must not know models or steps.
"""

from __future__ import annotations

import heapq

import numpy as np


def balanced(loads: np.ndarray, slots: int, devices: int) -> list[int]:
    """A placement of the experts with these loads.

    Each free slot goes to the expert whose slots have most to do. Then slots, those with most to do
    first, go to the device that has least to do and a free place, if possible one without the same
    expert.
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
    """How many slots each expert gets: at least one."""
    copies = np.ones(len(loads), int)
    waiting = [(-float(load), expert) for expert, load in enumerate(loads)]
    heapq.heapify(waiting)
    for _ in range(slots - len(loads)):
        _, expert = heapq.heappop(waiting)
        copies[expert] += 1
        heapq.heappush(waiting, (-float(loads[expert]) / copies[expert], expert))
    return copies


def balancedness(loads: np.ndarray, placement: list[int], devices: int) -> float:
    """The mean load of a device as a share of the largest: 1 if all are equal."""
    slots = np.asarray(placement)
    each = loads[slots] / np.bincount(slots, minlength=len(loads))[slots]
    totals = each.reshape(devices, -1).sum(axis=1)
    return float(totals.mean() / totals.max()) if totals.max() > 0 else 1.0
