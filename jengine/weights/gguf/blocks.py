"""GGUF's block formats as integers with scales: value = code * scale - least.

In: bytes of rows. Out: float32, or codes and scales as `QuantizedWeights` declares them, outputs
first. Must not know files. K-quants have super-blocks of 256 values with an integer scale per 16 or
32 values, in units of the super-block's scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import ml_dtypes
import numpy as np

from jengine.weight_formats import IQ4_VALUES, Integers, StoredBlocks, WeightFormat
from jengine.weights.gguf.header import PackedTensor
from jengine.weights.packed_values import pairs

PLAIN = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}


class Counted(NamedTuple):
    """Scales or minimums per group: `counts` [blocks, groups] times their block's `unit` [blocks,
    1]; without a unit, `counts` are the values."""

    counts: np.ndarray
    unit: np.ndarray | None = None

    def numbers(self) -> np.ndarray:
        """Values, float32 [blocks, groups, 1]."""
        found = self.counts.astype(np.float32)
        return (found if self.unit is None else self.unit.astype(np.float32) * found)[..., None]


class Coded(NamedTuple):
    """Blocks as int8 codes [blocks, groups, numbers], their scales, and minimums, if any."""

    codes: np.ndarray
    scale: Counted
    least: Counted | None = None

    def dequantized(self) -> np.ndarray:
        values = self.scale.numbers() * self.codes
        return values if self.least is None else values - self.least.numbers()


class BlockFormat(NamedTuple):
    """Decoder of a block type, and the weight format that represents it exactly."""

    decode: Callable[[np.ndarray], Coded]
    weights: WeightFormat


def plain_array(tensor: PackedTensor) -> np.ndarray:
    """The tensor in its own dtype if unquantized, else dequantized to float32."""
    data = tensor.bytes()
    if tensor.type.name in PLAIN:
        return data.view(PLAIN[tensor.type.name]).reshape(tensor.shape)
    return _coded(tensor).dequantized().reshape(tensor.shape)


def common_format(kinds: set[str]) -> WeightFormat | None:
    """Weight format that represents blocks of all these types exactly; None if none does."""
    if not kinds or not kinds <= FORMATS.keys():
        return None
    formats = list({FORMATS[kind].weights for kind in kinds})
    blocks = [one.blocks for one in formats if one.blocks is not None]
    if len(formats) == 1 or len(blocks) < len(formats):
        return formats[0] if len(formats) == 1 else None
    group, least = min(one.group or 0 for one in formats), any(one.least for one in blocks)
    codes = holding([Integers(8) if one.is_table else one.codes for one in blocks], CODE_BITS)
    units = [one.blocks.unit or one.group or 0 for one in formats if one.blocks is not None]
    if all(one.unit is None for one in blocks):
        return _format(codes, group, StoredBlocks(codes, least))
    scales = holding([one.scales for one in blocks], SCALE_BITS)
    leasts = holding([one.leasts for one in blocks], SCALE_BITS) if least else None
    return _format(codes, group, StoredBlocks(codes, least, min(units), scales, leasts))


# Bit widths of codes and of scales that the CPU kernels support.
CODE_BITS, SCALE_BITS = (2, 3, 4, 5, 6, 8), (4, 6, 8)


def holding(given: Sequence[Integers | None], known: tuple[int, ...]) -> Integers:
    """Smallest of the `known` integer types that represents all given ones; None stands for {0,
    1}."""
    every = [Integers(1, signed=False) if one is None else one for one in given]
    signed = any(one.signed for one in every)
    least = max(one.bits + (signed and not one.signed) for one in every)
    return Integers(min(bits for bits in known if bits >= least), signed)


def values_in(tensor: PackedTensor, format: WeightFormat) -> np.ndarray:
    """Codes [rows, inputs]: int8, or 4-bit pairs packed in bytes."""
    codes = _coded(tensor).codes.reshape(tensor.shape)
    if format.bits == 8:
        return codes
    assert format.blocks is not None, "codes of four bits have blocks"
    return pairs((codes + np.int8(8 if format.blocks.codes.signed else 0)).view(np.uint8))


def shared_in(name: str, tensor: PackedTensor, format: WeightFormat) -> np.ndarray:
    """A per-group tensor ("scale", "least" or a unit of these), [rows, groups of the format]."""
    what, _, is_unit = name.partition("_")
    coded, dtype = _coded(tensor), np.dtype(format.shared_dtypes("float32")[name])
    found: Counted | None = getattr(coded, what)
    if found is None:  # the type has no minimums
        found = Counted(np.zeros_like(coded.scale.counts), coded.scale.unit)
    if format.blocks is not None and format.blocks.unit is not None and found.unit is None:
        found = Counted(np.ones(found.counts.shape, np.int8), found.counts)
    numbers = found.unit if is_unit else found.counts
    assert numbers is not None, "formats with units have those of all their types"
    many = tensor.shape[-1] // (format.shared_by(name) or tensor.shape[-1])
    own = numbers.reshape(tensor.shape[0], -1)
    return np.repeat(own, many // own.shape[1], axis=1).astype(dtype)


def _coded(tensor: PackedTensor) -> Coded:
    blocks = tensor.bytes().reshape(-1, tensor.type.size)
    return FORMATS[tensor.type.name].decode(blocks)


def _single(blocks: np.ndarray, at: int) -> np.ndarray:
    """A float16 field of each block, [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2")


def _one_group(
    codes: np.ndarray, middle: int, scale: np.ndarray, least: np.ndarray | None = None
) -> Coded:
    """Blocks of unsigned codes [blocks, numbers] that share one scale. `least` is added, unlike in
    `Coded`."""
    return Coded(
        codes.astype(np.int8)[:, None] - np.int8(middle),
        Counted(scale),
        None if least is None else Counted(-least),
    )


def _nibbles(codes: np.ndarray) -> np.ndarray:
    """Low nibbles of a block's bytes, then high nibbles."""
    return np.concatenate([codes & 15, codes >> 4], axis=-1)


def _fifth_bits(blocks: np.ndarray, at: int) -> np.ndarray:
    """Fifth bits of 32 numbers."""
    return np.unpackbits(blocks[:, at : at + 4], axis=-1, bitorder="little") << 4


def _q8_0(blocks: np.ndarray) -> Coded:
    return _one_group(blocks[:, 2:].view(np.int8), 0, _single(blocks, 0))


def _q4_0(blocks: np.ndarray) -> Coded:
    return _one_group(_nibbles(blocks[:, 2:]), 8, _single(blocks, 0))


def _q4_1(blocks: np.ndarray) -> Coded:
    return _one_group(_nibbles(blocks[:, 4:]), 0, _single(blocks, 0), _single(blocks, 2))


def _q5_0(blocks: np.ndarray) -> Coded:
    codes = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2)
    return _one_group(codes, 16, _single(blocks, 0))


def _q5_1(blocks: np.ndarray) -> Coded:
    codes = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)
    return _one_group(codes, 0, _single(blocks, 0), _single(blocks, 2))


def _with_least(blocks: np.ndarray, codes: np.ndarray) -> Coded:
    """Q4_K and Q5_K: codes [blocks, 8, 32], with eight 6-bit scales and minimums packed in 12
    bytes."""
    given = blocks[:, 4:16]
    first, second, third = given[:, :4], given[:, 4:8], given[:, 8:]
    scales = np.concatenate([first & 63, third & 15 | (first >> 6) << 4], axis=1)
    least = np.concatenate([second & 63, third >> 4 | (second >> 6) << 4], axis=1)
    shared = Counted(scales, _single(blocks, 0)), Counted(least, _single(blocks, 2))
    return Coded(codes.view(np.int8), *shared)


def _q4_k(blocks: np.ndarray) -> Coded:
    return _with_least(blocks, _group_nibbles(blocks[:, 16:]))


def _q5_k(blocks: np.ndarray) -> Coded:
    fifth = blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    return _with_least(blocks, _group_nibbles(blocks[:, 48:]) | fifth << 4)


def _group_nibbles(codes: np.ndarray) -> np.ndarray:
    """[blocks, 8, 32]: low nibbles of 32 bytes are one group, high nibbles the next."""
    return _nibbles(codes.reshape(len(codes), 4, 32)).reshape(len(codes), 8, 32)


def _q6_k(blocks: np.ndarray) -> Coded:
    """Q6_K: each half block has four quarters of 32 numbers, with two scales each."""
    low = blocks[:, :128].reshape(-1, 2, 64)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    codes = _nibbles(low).reshape(-1, 2, 4, 32) | (high >> shifts & 3) << 4
    values = (codes.view(np.int8) - np.int8(32)).reshape(-1, 16, 16)
    return Coded(values, Counted(blocks[:, 192:208].view(np.int8), _single(blocks, 208)))


def _q2_k(blocks: np.ndarray) -> Coded:
    """Q2_K: sixteen groups of 16 with a 4-bit scale and minimum each."""
    given, codes = blocks[:, :16], _pairs_of_bits(blocks[:, 16:80])
    scale, least = (
        Counted(given & 15, _single(blocks, 80)),
        Counted(given >> 4, _single(blocks, 82)),
    )
    return Coded(codes.view(np.int8), scale, least)


def _q3_k(blocks: np.ndarray) -> Coded:
    """Q3_K: sixteen groups of 16 with a 6-bit scale each, third bits stored separately."""
    high = blocks[:, None, :32] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    codes = _pairs_of_bits(blocks[:, 32:96]) | high.reshape(-1, 16, 16) << 2
    given = blocks[:, 96:108]
    low = np.concatenate([given[:, :8] & 15, given[:, :8] >> 4], axis=1)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    top = (given[:, None, 8:] >> shifts & 3).reshape(-1, 16)
    scales = Counted((low | top << 4).view(np.int8) - np.int8(32), _single(blocks, 108))
    return Coded(codes.view(np.int8) - np.int8(4), scales)


def _pairs_of_bits(codes: np.ndarray) -> np.ndarray:
    """[blocks, 16, 16]: from each half of the bytes the lowest two bits, then the next two, and so
    on."""
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    return (codes.reshape(-1, 2, 1, 32) >> shifts & 3).reshape(-1, 16, 16)


# Value of each 4-bit code; FP4's are doubled to be integers.
IQ4 = np.array(IQ4_VALUES, np.int8)
FP4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)


def _iq4_nl(blocks: np.ndarray) -> Coded:
    return _one_group(IQ4[_nibbles(blocks[:, 2:])], 0, _single(blocks, 0))


def _iq4_xs(blocks: np.ndarray) -> Coded:
    """IQ4_XS: eight groups of 32 with 6-bit scales stored in two parts."""
    low = np.stack([blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4], axis=2).reshape(-1, 8)
    top = np.ascontiguousarray(blocks[:, 2:4]).view("<u2") >> np.arange(0, 16, 2) & 3
    scales = Counted((low | top << 4).astype(np.int8) - np.int8(32), _single(blocks, 0))
    return Coded(IQ4[_nibbles(blocks[:, 8:].reshape(-1, 8, 16))], scales)


def _mxfp4(blocks: np.ndarray) -> Coded:
    exponents = np.ascontiguousarray(blocks[:, :1]).view(ml_dtypes.float8_e8m0fnu)
    return _one_group(FP4[_nibbles(blocks[:, 1:])], 0, exponents.astype(np.float32) / 2)


def _format(codes: Integers, group: int, blocks: StoredBlocks) -> WeightFormat:
    in_pairs = codes.bits <= 4 and not blocks.is_table
    return WeightFormat("int4" if in_pairs else "int8", group, blocks=blocks)


def _single_scales(bits: int, *, least: bool = False, is_table: bool = False) -> WeightFormat:
    """float16 scales per 32 numbers; with least values, codes are unsigned."""
    codes = Integers(bits, signed=not least)
    return _format(codes, 32, StoredBlocks(codes, least, is_table=is_table))


def _counted_scales(
    bits: int, group: int, scale_bits: int, *, least: bool = False, is_table: bool = False
) -> WeightFormat:
    """K-quants: integer scales in units per 256 values; with minimums, all are unsigned."""
    codes, scales = Integers(bits, signed=not least), Integers(scale_bits, signed=not least)
    blocks = StoredBlocks(codes, least, 256, scales, scales if least else None, is_table)
    return _format(codes, group, blocks)


FORMATS: dict[str, BlockFormat] = {
    "Q4_0": BlockFormat(_q4_0, _single_scales(4)),
    "Q4_1": BlockFormat(_q4_1, _single_scales(4, least=True)),
    "Q5_0": BlockFormat(_q5_0, _single_scales(5)),
    "Q5_1": BlockFormat(_q5_1, _single_scales(5, least=True)),
    "Q8_0": BlockFormat(_q8_0, _single_scales(8)),
    "Q2_K": BlockFormat(_q2_k, _counted_scales(2, 16, 4, least=True)),
    "Q3_K": BlockFormat(_q3_k, _counted_scales(3, 16, 6)),
    "Q4_K": BlockFormat(_q4_k, _counted_scales(4, 32, 6, least=True)),
    "Q5_K": BlockFormat(_q5_k, _counted_scales(5, 32, 6, least=True)),
    "Q6_K": BlockFormat(_q6_k, _counted_scales(6, 16, 8)),
    "IQ4_NL": BlockFormat(_iq4_nl, _single_scales(4, is_table=True)),
    "IQ4_XS": BlockFormat(_iq4_xs, _counted_scales(4, 32, 6, is_table=True)),
    "MXFP4": BlockFormat(_mxfp4, WeightFormat("int8", 32)),  # float32 scales: E8M0
}
