"""Values and scales of quantized checkpoints out of the integers that files pack them in.

In: arrays as files hold them. Out: arrays as `QuantizedWeights` declares them, outputs first:
values of eight bits [outputs, inputs], values of four bits as pairs of inputs in a byte, the first
in its low half, and scales and zeros [outputs, groups]. Must not know files or devices.
"""

from __future__ import annotations

import numpy as np

from jengine.quantization.codes import FP4_VALUES
from jengine.weight_formats import WeightFormat

# The order in which AWQ packs eight columns into 32 bits, lowest bits first.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
SIGNED_FP4 = np.array((*FP4_VALUES, *(-value for value in FP4_VALUES)), np.float32)
WORD = np.dtype("<i4")


def values_along_inputs(words: np.ndarray, bits: int) -> np.ndarray:
    """compressed-tensors' values, int32 [outputs, words], lowest bits first and offset to be
    unsigned. Four bits stay pairs in a byte; eight bits become signed."""
    unsigned = np.ascontiguousarray(words, WORD).view(np.uint8)
    return unsigned if bits == 4 else signed(unsigned)


def values_along_rows(words: np.ndarray, bits: int) -> np.ndarray:
    """GPTQ's values, int32 [words, outputs], lowest bits first and unsigned."""
    count, outputs = words.shape
    # [words, outputs, 4] to [words, 4, outputs]: a byte holds inputs that follow each other.
    found = np.ascontiguousarray(words, WORD).view(np.uint8).reshape(count, outputs, 4)
    found = found.swapaxes(1, 2).reshape(count * 4, outputs)
    return (found if bits == 4 else signed(found)).T


def awq_values(words: np.ndarray) -> np.ndarray:
    """AWQ's values of four bits, int32 [inputs, outputs / 8]."""
    return pairs(awq_columns(words).T)


def awq_columns(words: np.ndarray) -> np.ndarray:
    """Unsigned values of four bits, uint8 [rows, outputs], out of AWQ's int32."""
    packed = unsigned_values(words, 4).reshape(len(words), -1, len(AWQ_ORDER))
    found = np.empty_like(packed)
    found[..., AWQ_ORDER] = packed
    return found.reshape(len(words), -1)


def unsigned_values(words: np.ndarray, bits: int) -> np.ndarray:
    """uint8 [rows, values] out of int32 [rows, words], lowest bits first."""
    found = np.ascontiguousarray(words, WORD).view(np.uint8)
    if bits == 8:
        return found
    return np.stack((found & 15, found >> 4), -1).reshape(len(words), -1)


def packed_words(values: np.ndarray, bits: int) -> np.ndarray:
    """The inverse: int32 [rows, words] out of uint8 [rows, values], padded with zeros."""
    padding = -values.shape[1] % (32 // bits)
    values = np.pad(values, ((0, 0), (0, padding)))
    flat = values if bits == 8 else pairs(values)
    return np.ascontiguousarray(flat).view(WORD)


def pairs(values: np.ndarray) -> np.ndarray:
    """Two values of four bits that follow each other in a byte, the first in its low half."""
    return values[:, 0::2] | values[:, 1::2] << np.uint8(4)


def unpaired(values: np.ndarray) -> np.ndarray:
    """The inverse: uint8 [rows, 2 * bytes]."""
    return np.stack((values & 15, values >> 4), -1).reshape(len(values), -1)


def signed(values: np.ndarray) -> np.ndarray:
    """Unsigned values of eight bits, offset by 128, as int8."""
    return (values ^ np.uint8(0x80)).view(np.int8)


def unsigned(values: np.ndarray) -> np.ndarray:
    """The inverse: uint8."""
    return values.view(np.uint8) ^ np.uint8(0x80)


def scales_per_output(
    scales: np.ndarray, outputs: int, groups: int, block_rows: int = 1
) -> np.ndarray:
    """float32 [outputs, groups] out of one scale for all, one per output, or one per block."""
    found = np.asarray(scales, np.float32)
    if found.size == 1:
        return np.broadcast_to(found.reshape(1, 1), (outputs, groups))
    found = found.reshape(len(found), -1)
    if block_rows > 1:
        found = np.repeat(found, block_rows, axis=0)[:outputs]
    return np.broadcast_to(found, (outputs, groups))


def dequantized(
    values: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None, format: WeightFormat
) -> np.ndarray:
    """float32 [outputs, inputs] out of values, scales and zeros as `QuantizedWeights` has them."""
    if format.bits == 4:
        codes = unpaired(values)
        plain = SIGNED_FP4[codes] if format.values == "fp4" else codes.astype(np.float32)
        middle = 8
    else:
        plain, middle = values.astype(np.float32), 128
    size = plain.shape[1] if format.group is None else format.group

    def spread(per_group: np.ndarray) -> np.ndarray:
        return np.repeat(per_group.astype(np.float32), size, axis=1)[:, : plain.shape[1]]

    if zeros is not None:
        # Eight bits are stored as signed numbers, whose zeros are not.
        plain -= spread(zeros) - np.float32(middle if format.bits == 8 else 0)
    elif format.values == "int4":
        plain -= np.float32(middle)
    return plain * spread(scales)


def power_of_two(exponents: np.ndarray) -> np.ndarray:
    """float32 scales out of E8M0, the bits of an exponent with a bias of 127."""
    codes = exponents.view(np.uint8).astype(np.int32)
    is_nan = codes == 255
    found = np.ldexp(np.float32(1), np.where(is_nan, 0, codes - 127))
    return np.where(is_nan, np.float32(np.nan), found)


def exponents(scales: np.ndarray) -> np.ndarray:
    """The inverse, of powers of two."""
    return (np.frexp(scales)[1] + 126).astype(np.uint8)
