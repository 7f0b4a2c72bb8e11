"""Opens GGUF models of one or several files.

In: a file, or the first of several. Out: one header, whose tensors refer to their file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from jengine.errors import CheckpointError
from jengine.weights.gguf.header import GgufHeader, PackedTensor, read_header

PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


def open_gguf(file: Path) -> GgufHeader:
    """Header of a model, with tensors of all its files. Raises CheckpointError."""
    header = read_header(file)
    count = header.metadata.get("split.count", 1)
    if not isinstance(count, int) or count <= 1:
        return header
    parts = PART.search(file.name)
    if parts is None or int(parts[1]) != 1 or int(parts[2]) != count:
        raise CheckpointError(
            f"{file}: is one of {count} files; give the first, NAME-00001-of-{count:05d}.gguf."
        )
    tensors = dict(header.tensors)
    for number in range(2, count + 1):
        part = file.with_name(PART.sub(f"-{number:05d}-of-{parts[2]}.gguf", file.name))
        if not part.is_file():
            raise CheckpointError(f"{file}: is one of {count} files, and there is no {part.name}.")
        tensors = _joined(part, tensors, read_header(part), number - 1)
    said = header.metadata.get("split.tensors.count", len(tensors))
    if said != len(tensors):
        raise CheckpointError(
            f"{file}: its {count} files hold {len(tensors)} tensors, and the first says {said}."
        )
    return replace(header, tensors=tensors)


def _joined(
    file: Path, tensors: Mapping[str, PackedTensor], part: GgufHeader, number: int
) -> dict[str, PackedTensor]:
    """Merge the next file's tensors. Raises CheckpointError."""
    if part.metadata.get("split.no") != number:
        raise CheckpointError(
            f"{file}: says that it is number {part.metadata.get('split.no')!r} of the files,"
            f" expected {number}. It is another model's, or was renamed."
        )
    both = tensors.keys() & part.tensors.keys()
    if both:
        raise CheckpointError(f"{file}: {min(both)!r} is in {tensors[min(both)].file} too.")
    return {**tensors, **part.tensors}
