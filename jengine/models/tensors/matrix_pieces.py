"""Pieces of matrices and biases, separate or fused in one tensor.

In: checkpoint names, sizes, and slices of a parameter. Out: pieces. Must not know what the matrices
are for.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from jengine.models.tensors.checkpoint import EVERY, Index, Names, Piece

Pieces = dict[str, tuple[Piece, ...]]


def matrices(
    names: Names, theirs: Sequence[str], inputs: int, outputs: Sequence[int], ours: Sequence[Index]
) -> tuple[Piece, ...]:
    """Pieces of matrices [outputs[i], inputs] for slices ours[i], each in its own tensor or all
    fused in one."""
    pieces = []
    for (name, rows, source), index in zip(_sources(theirs, outputs), ours, strict=True):
        weight = f"{name}.weight"
        if names.stored_in_out:
            where = (EVERY, *source) if source else ()
            pieces.append(Piece(weight, (inputs, rows), index, source=where))
        else:
            pieces.append(Piece(weight, (rows, inputs), index, transpose=True, source=source))
    return tuple(pieces)


def biases(theirs: Sequence[str], sizes: Sequence[int], ours: Sequence[Index]) -> tuple[Piece, ...]:
    """Biases of `matrices`."""
    return tuple(
        Piece(f"{name}.bias", (size,), index, source=source)
        for (name, size, source), index in zip(_sources(theirs, sizes), ours, strict=True)
    )


def _sources(theirs: Sequence[str], sizes: Sequence[int]) -> Iterator[tuple[str, int, Index]]:
    """Per size: tensor name, its length, and the slice of it; () is the whole tensor."""
    if len(theirs) == len(sizes):
        yield from ((name, size, ()) for name, size in zip(theirs, sizes, strict=True))
        return
    (name,) = theirs
    ends = list(itertools.accumulate(sizes))
    for size, end in zip(sizes, ends, strict=True):
        yield name, ends[-1], (slice(end - size, end),)
