"""Which layers of a model stay in the host's memory so that devices are spared some bytes.

In: the bytes of each layer on a device. Out: layers. Must not know arrays.
"""

from __future__ import annotations

from collections.abc import Mapping

GIB = 2**30


def layers_to_spare(sizes: Mapping[int, int], gib: float) -> list[int]:
    """As few layers as hold so many GiB, or all, spread evenly: while one is copied to the devices
    those before it compute. The last one is the end of the last stretch."""
    layers = sorted(sizes)
    for count in range(len(layers) + 1):
        chosen = [layers[(place + 1) * len(layers) // count - 1] for place in range(count)]
        if sum(sizes[layer] for layer in chosen) >= gib * GIB:
            return chosen
    return layers
