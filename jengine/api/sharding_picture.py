"""Parameter shardings of an engine, as a dict, as text and as a notebook picture.

In: shapes and shardings by parameter. Out: ParamShardings. Equal layers share a line.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from jax.sharding import NamedSharding

# Devices are coloured by the shard they hold; colours repeat.
COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#eeca3b", "#b279a2", "#9d755d")
LAYER = re.compile(r"layers\.(\d+)\.")


@dataclass(frozen=True)
class ShardingLine:
    """Parameters with the same shape and sharding."""

    name: str
    shape: tuple[int, ...]
    sharding: NamedSharding

    @property
    def holders(self) -> dict[int, int]:
        """Device id -> index of the shard it holds."""
        parts: dict[tuple[tuple[int, int, int], ...], int] = {}
        found = {}
        for device, index in self.sharding.devices_indices_map(self.shape).items():
            place = tuple(one.indices(n) for one, n in zip(index, self.shape, strict=True))
            found[device.id] = parts.setdefault(place, len(parts))
        return found

    @property
    def split(self) -> str:
        """The shape, with the mesh axes of each dimension."""
        spec = (*self.sharding.spec, *[None] * len(self.shape))
        return " x ".join(
            f"{size:,}" if not (ways := self._over(names)) else f"{size:,} / {ways}"
            for size, names in zip(self.shape, spec, strict=False)
        )

    def _over(self, names: str | tuple[str, ...] | None) -> str:
        """Mesh axes that shard one array axis, except axes of size 1."""
        named = (names,) if isinstance(names, str) else names or ()
        return " ".join(name for name in named if self.sharding.mesh.shape[name] > 1)


class ParamShardings(dict[str, NamedSharding]):
    """Parameter -> sharding. Drawn as a picture in notebooks."""

    def __init__(self, shardings: Mapping[str, NamedSharding], shapes: Mapping[str, tuple]) -> None:
        super().__init__(shardings)
        self.shapes = dict(shapes)

    def lines(self) -> Iterator[ShardingLine]:
        """Yield a line per distinct parameter, in the model's order."""
        alike: dict[tuple[str, tuple[int, ...], NamedSharding], list[str]] = {}
        for path, sharding in self.items():
            key = (LAYER.sub("layers.*.", path), self.shapes[path], sharding)
            alike.setdefault(key, []).append(path)
        for (name, shape, sharding), paths in alike.items():
            layers = [int(found[1]) for found in map(LAYER.match, paths) if found]
            yield ShardingLine(name.replace("*", in_words(layers)), shape, sharding)

    def __str__(self) -> str:
        rows = []
        for line in self.lines():
            parts = line.holders
            held = counted(len(set(parts.values())), "part")
            rows.append((line.name, line.split, f"{held} on {counted(len(parts), 'device')}"))
        widths = [max((len(row[column]) for row in rows), default=0) for column in range(2)]
        return "\n".join(f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c}" for a, b, c in rows)

    def _repr_html_(self) -> str:
        return f"<table>{''.join(map(row_in_html, self.lines()))}</table>"


def row_in_html(line: ShardingLine) -> str:
    """Table row: name, shape, and a cell per device."""
    cells = "".join(
        f'<span title="device {device}: part {part}" style="display: inline-block; width: 1em; '
        f'height: 1em; margin-right: 1px; background: {COLOURS[part % len(COLOURS)]}"></span>'
        for device, part in line.holders.items()
    )
    held = math.prod(line.sharding.shard_shape(line.shape))
    return (
        f'<tr><td style="text-align: left">{html.escape(line.name)}</td>'
        f'<td style="text-align: left">{html.escape(line.split)}</td>'
        f"<td>{held:,} each</td><td>{cells}</td></tr>"
    )


def counted(count: int, noun: str) -> str:
    """A number with its noun: 1 part, 2 parts."""
    return f"{count} {noun}" + "s" * (count != 1)


def in_words(layers: list[int]) -> str:
    """Layer numbers with ranges, such as "0-3,7"."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], layer]
        else:
            runs.append([layer, layer])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
