"""GGUF's block formats as integers with scales: value = code * scale + least.

In: bytes of rows. Out: float32, or codes, scales and zeros as `QuantizedWeights` declares them,
outputs first. Must not know files. K-quants have blocks of 256 numbers with a scale per 16 or 32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import ml_dtypes
import numpy as np

from jengine.weight_formats import WeightFormat
from jengine.weights.gguf.header import PackedTensor
from jengine.weights.packed_values import pairs

PLAIN = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}


class Coded(NamedTuple):
    """Blocks as codes [blocks, groups, numbers], and float32 scales and least values [blocks,
    groups, 1]. Codes are int8; with `least` they are unsigned, so that 0 stands for it."""

    codes: np.ndarray
    scale: np.ndarray
    least: np.ndarray | None = None

    def dequantized(self) -> np.ndarray:
        """float32 values."""
        values = self.scale * self.codes
        return values if self.least is None else values + self.least


class BlockFormat(NamedTuple):
    """How a type's blocks are decoded, and the format whose codes and scales are exactly theirs."""

    decode: Callable[[np.ndarray], Coded]
    weights: WeightFormat


def plain_array(tensor: PackedTensor) -> np.ndarray:
    """The tensor in its own dtype if unquantized, else dequantized to float32."""
    data = tensor.bytes()
    if tensor.type.name in PLAIN:
        return data.view(PLAIN[tensor.type.name]).reshape(tensor.shape)
    return _coded(tensor).dequantized().reshape(tensor.shape)


def common_format(kinds: set[str]) -> WeightFormat | None:
    """The format that holds codes of all these types exactly; None if some have none."""
    if not kinds or not kinds <= FORMATS.keys():
        return None
    formats = [FORMATS[kind].weights for kind in kinds]
    zeros = any(one.zeros for one in formats)
    return WeightFormat(
        max(formats, key=lambda one: one.bits).values,
        min(one.group or 0 for one in formats),
        zeros,
        real_zeros=zeros,
    )


def values_in(tensor: PackedTensor, format: WeightFormat) -> np.ndarray:
    """Codes [rows, inputs]: int8, or pairs of four bits."""
    coded = _without_flat_groups(_coded(tensor))
    codes = coded.codes.reshape(tensor.shape)
    if format.bits == 8:
        return codes
    return pairs((codes + np.int8(_middle(coded, format))).view(np.uint8))


def scales_in(tensor: PackedTensor, format: WeightFormat) -> np.ndarray:
    """float32 scales [rows, groups]."""
    return _in_groups_of(tensor, format, _without_flat_groups(_coded(tensor)).scale)


def zeros_in(tensor: PackedTensor, format: WeightFormat) -> np.ndarray:
    """float32 zeros [rows, groups]: what codes are at which values are 0, where they are stored
    unsigned."""
    coded = _without_flat_groups(_coded(tensor))
    middle = np.float32(_middle(coded, format))
    if coded.least is None:
        return _in_groups_of(tensor, format, np.full_like(coded.scale, middle))
    steps = np.divide(coded.least, coded.scale, out=np.zeros_like(coded.least),
                      where=coded.scale != 0)  # fmt: skip
    return _in_groups_of(tensor, format, middle - steps)


def _middle(coded: Coded, format: WeightFormat) -> int:
    """What stored codes are larger by than `coded.codes`."""
    if format.bits == 8:
        return 128
    return 8 if coded.least is None else 0


def _without_flat_groups(coded: Coded) -> Coded:
    """Groups whose scale is 0 hold their least value alone: it becomes the scale of ones, as zeros
    are counted in scales."""
    if coded.least is None:
        return coded
    flat = (coded.scale == 0) & (coded.least != 0)
    codes = np.where(flat, coded.codes.dtype.type(0), coded.codes)
    return Coded(codes, np.where(flat, coded.least, coded.scale), coded.least)


def _in_groups_of(tensor: PackedTensor, format: WeightFormat, shared: np.ndarray) -> np.ndarray:
    """A number of each of a block's groups, as [rows, groups of the format]."""
    groups = tensor.shape[-1] // (format.group or tensor.shape[-1])
    own = shared.reshape(tensor.shape[0], -1)
    return np.repeat(own, groups // own.shape[1], axis=1)


def _coded(tensor: PackedTensor) -> Coded:
    blocks = tensor.bytes().reshape(-1, tensor.type.size)
    return FORMATS[tensor.type.name].decode(blocks)


def _single(blocks: np.ndarray, at: int) -> np.ndarray:
    """A float16 field of each block as float32, [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _one_group(
    codes: np.ndarray, middle: int, scale: np.ndarray, least: np.ndarray | None = None
) -> Coded:
    """Blocks that share one scale, of unsigned codes [blocks, numbers]."""
    return Coded(
        codes.astype(np.int8)[:, None] - np.int8(middle),
        scale[:, None],
        None if least is None else least[:, None],
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
    """Q4_K's and Q5_K's codes [blocks, 8, 32], whose 6-bit scales and minimums are in twelve
    bytes."""
    given = blocks[:, 4:16]
    first, second, third = given[:, :4], given[:, 4:8], given[:, 8:]
    scales = np.concatenate([first & 63, third & 15 | (first >> 6) << 4], axis=1)
    least = np.concatenate([second & 63, third >> 4 | (second >> 6) << 4], axis=1)
    scale, offset = _single(blocks, 0) * scales, -(_single(blocks, 2) * least)
    return Coded(codes.view(np.int8), scale[..., None], offset[..., None])


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
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32) * _single(blocks, 208)
    values = (codes.view(np.int8) - np.int8(32)).reshape(-1, 16, 16)
    return Coded(values, scales[..., None])


def _q2_k(blocks: np.ndarray) -> Coded:
    """Q2_K: sixteen groups of 16 with a 4-bit scale and minimum each."""
    given, codes = blocks[:, :16], _pairs_of_bits(blocks[:, 16:80])
    scale, least = _single(blocks, 80) * (given & 15), -(_single(blocks, 82) * (given >> 4))
    return Coded(codes.view(np.int8), scale[..., None], least[..., None])


def _q3_k(blocks: np.ndarray) -> Coded:
    """Q3_K: sixteen groups of 16 with a 6-bit scale each, third bits stored separately."""
    high = blocks[:, None, :32] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    codes = _pairs_of_bits(blocks[:, 32:96]) | high.reshape(-1, 16, 16) << 2
    given = blocks[:, 96:108]
    low = np.concatenate([given[:, :8] & 15, given[:, :8] >> 4], axis=1)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    top = (given[:, None, 8:] >> shifts & 3).reshape(-1, 16)
    scales = _single(blocks, 108) * ((low | top << 4).view(np.int8) - np.int8(32))
    return Coded(codes.view(np.int8) - np.int8(4), scales[..., None])


def _pairs_of_bits(codes: np.ndarray) -> np.ndarray:
    """[blocks, 16, 16]: per half of the bytes, the lowest two bits, then the next two, and so
    on."""
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    return (codes.reshape(-1, 2, 1, 32) >> shifts & 3).reshape(-1, 16, 16)


# Numbers that codes of four bits stand for; those of FP4 are doubled.
IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
FP4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)


def _iq4_nl(blocks: np.ndarray) -> Coded:
    return _one_group(IQ4[_nibbles(blocks[:, 2:])], 0, _single(blocks, 0))


def _iq4_xs(blocks: np.ndarray) -> Coded:
    """IQ4_XS: eight groups of 32 with 6-bit scales stored in two parts."""
    low = np.stack([blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4], axis=2).reshape(-1, 8)
    top = np.ascontiguousarray(blocks[:, 2:4]).view("<u2") >> np.arange(0, 16, 2) & 3
    scales = _single(blocks, 0) * ((low | top << 4).astype(np.float32) - 32)
    return Coded(IQ4[_nibbles(blocks[:, 8:].reshape(-1, 8, 16))], scales[..., None])


def _mxfp4(blocks: np.ndarray) -> Coded:
    exponents = np.ascontiguousarray(blocks[:, :1]).view(ml_dtypes.float8_e8m0fnu)
    return _one_group(FP4[_nibbles(blocks[:, 1:])], 0, exponents.astype(np.float32) / 2)


def _format(bits: int, group: int, *, least: bool = False) -> WeightFormat:
    return WeightFormat("int4" if bits == 4 else "int8", group, least, real_zeros=least)


# Codes of five and six bits, and those that stand for others, are bytes.
FORMATS: dict[str, BlockFormat] = {
    "Q4_0": BlockFormat(_q4_0, _format(4, 32)),
    "Q4_1": BlockFormat(_q4_1, _format(4, 32, least=True)),
    "Q5_0": BlockFormat(_q5_0, _format(8, 32)),
    "Q5_1": BlockFormat(_q5_1, _format(8, 32, least=True)),
    "Q8_0": BlockFormat(_q8_0, _format(8, 32)),
    "Q2_K": BlockFormat(_q2_k, _format(4, 16, least=True)),
    "Q3_K": BlockFormat(_q3_k, _format(4, 16)),
    "Q4_K": BlockFormat(_q4_k, _format(4, 32, least=True)),
    "Q5_K": BlockFormat(_q5_k, _format(8, 32, least=True)),
    "Q6_K": BlockFormat(_q6_k, _format(8, 16)),
    "IQ4_NL": BlockFormat(_iq4_nl, _format(8, 32)),
    "IQ4_XS": BlockFormat(_iq4_xs, _format(8, 32)),
    "MXFP4": BlockFormat(_mxfp4, _format(8, 32)),
}
