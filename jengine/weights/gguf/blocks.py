"""Dequantizes GGUF's block formats.

In: bytes of rows. Out: float32, or integers and scales. Must not know files. K-quants have blocks
of 256 numbers with a scale per 16 or 32.
"""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

from jengine.weights.gguf.header import PackedTensor

PLAIN = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}


def plain_array(tensor: PackedTensor) -> np.ndarray:
    """The tensor in its own dtype if unquantized, else dequantized to float32."""
    data = tensor.bytes()
    if tensor.type.name in PLAIN:
        return data.view(PLAIN[tensor.type.name]).reshape(tensor.shape)
    blocks = data.reshape(-1, tensor.type.size)
    return DEQUANTIZE[tensor.type.name](blocks).reshape(tensor.shape)


def q8_values(tensor: PackedTensor) -> np.ndarray:
    """Q8_0's integers, int8 [rows, inputs]."""
    rows = tensor.bytes().reshape(tensor.shape[0], -1, tensor.type.size)
    return rows[:, :, 2:].view(np.int8).reshape(tensor.shape)


def q8_scales(tensor: PackedTensor) -> np.ndarray:
    """Q8_0's scales, float16 [rows, blocks]."""
    rows = tensor.bytes().reshape(tensor.shape[0], -1, tensor.type.size)
    return _half(rows, 0)[..., 0]


def _half(blocks: np.ndarray, at: int) -> np.ndarray:
    """A float16 field of each block, [..., 1]."""
    return np.ascontiguousarray(blocks[..., at : at + 2]).view("<f2")


def _single(blocks: np.ndarray, at: int) -> np.ndarray:
    return _half(blocks, at).astype(np.float32)


def _nibbles(codes: np.ndarray) -> np.ndarray:
    """Low nibbles of a block's bytes, then high nibbles."""
    return np.concatenate([codes & 15, codes >> 4], axis=-1)


def _fifth_bits(blocks: np.ndarray, at: int) -> np.ndarray:
    """Fifth bits of 32 numbers."""
    return np.unpackbits(blocks[:, at : at + 4], axis=-1, bitorder="little") << 4


def _q8_0(blocks: np.ndarray) -> np.ndarray:
    return _single(blocks, 0) * blocks[:, 2:].view(np.int8)


def _q4_0(blocks: np.ndarray) -> np.ndarray:
    return _single(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(np.int8) - np.int8(8))


def _q4_1(blocks: np.ndarray) -> np.ndarray:
    return _single(blocks, 0) * _nibbles(blocks[:, 4:]) + _single(blocks, 2)


def _q5_0(blocks: np.ndarray) -> np.ndarray:
    codes = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2)
    return _single(blocks, 0) * (codes.astype(np.int8) - np.int8(16))


def _q5_1(blocks: np.ndarray) -> np.ndarray:
    codes = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)
    return _single(blocks, 0) * codes + _single(blocks, 2)


def _scales_and_least(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Unpack Q4_K's and Q5_K's 6-bit scales and minimums [blocks, 8] from twelve bytes."""
    given = blocks[:, 4:16]
    first, second, third = given[:, :4], given[:, 4:8], given[:, 8:]
    scales = np.concatenate([first & 63, third & 15 | (first >> 6) << 4], axis=1)
    least = np.concatenate([second & 63, third >> 4 | (second >> 6) << 4], axis=1)
    return _single(blocks, 0) * scales, _single(blocks, 2) * least


def _in_groups(blocks: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Scale and offset codes [blocks, 8, 32] by group."""
    scales, least = _scales_and_least(blocks)
    return scales[..., None] * codes - least[..., None]


def _q4_k(blocks: np.ndarray) -> np.ndarray:
    return _in_groups(blocks, _group_nibbles(blocks[:, 16:]))


def _q5_k(blocks: np.ndarray) -> np.ndarray:
    fifth = blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    return _in_groups(blocks, _group_nibbles(blocks[:, 48:]) | fifth << 4)


def _group_nibbles(codes: np.ndarray) -> np.ndarray:
    """[blocks, 8, 32]: low nibbles of 32 bytes are one group, high nibbles the next."""
    return _nibbles(codes.reshape(len(codes), 4, 32)).reshape(len(codes), 8, 32)


def _q6_k(blocks: np.ndarray) -> np.ndarray:
    """Q6_K: each half block has four quarters of 32 numbers, with two scales each."""
    low = blocks[:, :128].reshape(-1, 2, 64)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    codes = _nibbles(low).reshape(-1, 2, 4, 32) | (high >> shifts & 3) << 4
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32) * _single(blocks, 208)
    values = (codes.astype(np.int8) - np.int8(32)).reshape(-1, 16, 16)
    return scales[..., None] * values


def _q2_k(blocks: np.ndarray) -> np.ndarray:
    """Q2_K: sixteen groups of 16 with a 4-bit scale and minimum each."""
    given, codes = blocks[:, :16], _pairs(blocks[:, 16:80])
    scales = (_single(blocks, 80) * (given & 15))[..., None]
    return scales * codes - (_single(blocks, 82) * (given >> 4))[..., None]


def _q3_k(blocks: np.ndarray) -> np.ndarray:
    """Q3_K: sixteen groups of 16 with a 6-bit scale each, third bits stored separately."""
    high = blocks[:, None, :32] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    codes = _pairs(blocks[:, 32:96]) | high.reshape(-1, 16, 16) << 2
    given = blocks[:, 96:108]
    low = np.concatenate([given[:, :8] & 15, given[:, :8] >> 4], axis=1)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    top = (given[:, None, 8:] >> shifts & 3).reshape(-1, 16)
    scales = _single(blocks, 108) * ((low | top << 4).astype(np.int8) - np.int8(32))
    return scales[..., None] * (codes.astype(np.int8) - np.int8(4))


def _pairs(codes: np.ndarray) -> np.ndarray:
    """[blocks, 16, 16]: per half of the bytes, the lowest two bits, then the next two, and so
    on."""
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    return (codes.reshape(-1, 2, 1, 32) >> shifts & 3).reshape(-1, 16, 16)


# Numbers that codes of four bits stand for.
IQ4 = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def _iq4_nl(blocks: np.ndarray) -> np.ndarray:
    return _single(blocks, 0) * IQ4[_nibbles(blocks[:, 2:])]


def _iq4_xs(blocks: np.ndarray) -> np.ndarray:
    """IQ4_XS: eight groups of 32 with 6-bit scales stored in two parts."""
    low = np.stack([blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4], axis=2).reshape(-1, 8)
    top = np.ascontiguousarray(blocks[:, 2:4]).view("<u2") >> np.arange(0, 16, 2) & 3
    scales = _single(blocks, 0) * ((low | top << 4).astype(np.float32) - 32)
    return scales[..., None] * IQ4[_nibbles(blocks[:, 8:].reshape(-1, 8, 16))]


def _mxfp4(blocks: np.ndarray) -> np.ndarray:
    exponents = np.ascontiguousarray(blocks[:, :1]).view(ml_dtypes.float8_e8m0fnu)
    return exponents.astype(np.float32) * FP4[_nibbles(blocks[:, 1:])]


DEQUANTIZE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
}
