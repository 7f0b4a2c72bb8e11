"""Chooses layers to keep in host memory (CPU offload).

In: bytes per layer on a device. Out: layer indices. Must not know arrays.
"""

from __future__ import annotations

from collections.abc import Mapping

GIB = 2**30


def layers_to_offload(sizes: Mapping[int, int], gib: float) -> list[int]:
    """The fewest evenly spaced layers that hold `gib` GiB, or all.

    Spacing lets a layer's copy overlap with the layers before it. The last offloaded layer is the
    last of its interval.
    """
    layers = sorted(sizes)
    for count in range(len(layers) + 1):
        chosen = [layers[(place + 1) * len(layers) // count - 1] for place in range(count)]
        if sum(sizes[layer] for layer in chosen) >= gib * GIB:
            return chosen
    return layers
