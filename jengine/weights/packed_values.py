"""Unpacks quantized checkpoints' integers and scales.

In: arrays as files hold them. Out: arrays as `QuantizedWeights` declares them, outputs first: int8
[outputs, inputs], 4-bit as two inputs per byte (first in the low nibble), scales and zeros
[outputs, groups]. Must not know files or devices.
"""

from __future__ import annotations

import numpy as np

from jengine.quantization.codes import FP4_VALUES
from jengine.weight_formats import WeightFormat

# Order in which AWQ packs eight columns into 32 bits, from the lowest bits up.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
SIGNED_FP4 = np.array((*FP4_VALUES, *(-value for value in FP4_VALUES)), np.float32)
WORD = np.dtype("<i4")


def values_along_inputs(words: np.ndarray, bits: int) -> np.ndarray:
    """compressed-tensors' values: int32 [outputs, words], lowest bits first, offset to unsigned.
    4-bit values stay packed, 8-bit ones become signed."""
    unsigned = np.ascontiguousarray(words, WORD).view(np.uint8)
    return unsigned if bits == 4 else signed(unsigned)


def values_along_rows(words: np.ndarray, bits: int) -> np.ndarray:
    """GPTQ's values: int32 [words, outputs], lowest bits first, unsigned."""
    count, outputs = words.shape
    # [words, outputs, 4] to [words, 4, outputs]: a byte holds consecutive inputs.
    found = np.ascontiguousarray(words, WORD).view(np.uint8).reshape(count, outputs, 4)
    found = found.swapaxes(1, 2).reshape(count * 4, outputs)
    return (found if bits == 4 else signed(found)).T


def awq_values(words: np.ndarray) -> np.ndarray:
    """AWQ's 4-bit values: int32 [inputs, outputs / 8]."""
    return pairs(awq_columns(words).T)


def awq_columns(words: np.ndarray) -> np.ndarray:
    """Unpack AWQ's int32 words to unsigned 4-bit values, uint8 [rows, outputs]."""
    packed = unsigned_values(words, 4).reshape(len(words), -1, len(AWQ_ORDER))
    found = np.empty_like(packed)
    found[..., AWQ_ORDER] = packed
    return found.reshape(len(words), -1)


def unsigned_values(words: np.ndarray, bits: int) -> np.ndarray:
    """Unpack int32 [rows, words], lowest bits first, to uint8 [rows, values]."""
    found = np.ascontiguousarray(words, WORD).view(np.uint8)
    if bits == 8:
        return found
    return np.stack((found & 15, found >> 4), -1).reshape(len(words), -1)


def packed_words(values: np.ndarray, bits: int) -> np.ndarray:
    """Inverse of `unsigned_values`, zero-padded."""
    padding = -values.shape[1] % (32 // bits)
    values = np.pad(values, ((0, 0), (0, padding)))
    flat = values if bits == 8 else pairs(values)
    return np.ascontiguousarray(flat).view(WORD)


def from_ternary(values: np.ndarray) -> np.ndarray:
    """Values -1, 0 and 1 of any dtype as pairs of 4-bit values."""
    return pairs((values + 8).astype(np.uint8))


def ternary_in_quarters(packed: np.ndarray) -> np.ndarray:
    """Unpack BitNet's uint8 [outputs / 4, inputs] to -1, 0 and 1: each byte holds one output of
    each quarter of the outputs, the first quarter's in the lowest bits."""
    quarters = [packed >> np.uint8(2 * quarter) & np.uint8(3) for quarter in range(4)]
    return np.concatenate(quarters).view(np.int8) - np.int8(1)


def pairs(values: np.ndarray) -> np.ndarray:
    """Pack two consecutive 4-bit values per byte, the first in the low nibble."""
    return values[:, 0::2] | values[:, 1::2] << np.uint8(4)


def unpaired(values: np.ndarray) -> np.ndarray:
    """Inverse of `pairs`: uint8 [rows, 2 * bytes]."""
    return np.stack((values & 15, values >> 4), -1).reshape(len(values), -1)


def signed(values: np.ndarray) -> np.ndarray:
    """Offset-128 unsigned values as int8."""
    return (values ^ np.uint8(0x80)).view(np.int8)


def unsigned(values: np.ndarray) -> np.ndarray:
    """Inverse of `signed`."""
    return values.view(np.uint8) ^ np.uint8(0x80)


def scales_per_output(
    scales: np.ndarray, outputs: int, groups: int, block_rows: int = 1
) -> np.ndarray:
    """Expand scales per tensor, per output or per block to float32 [outputs, groups]."""
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
    """Dequantize to float32 [outputs, inputs]."""
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
        # 8-bit values are stored with offset 128, zeros without.
        plain -= spread(zeros) - np.float32(middle if format.bits == 8 else 0)
    elif format.values == "int4":
        plain -= np.float32(middle)
    return plain * spread(scales)


def power_of_two(exponents: np.ndarray) -> np.ndarray:
    """Decode E8M0 exponents to float32 scales."""
    codes = exponents.view(np.uint8).astype(np.int32)
    is_nan = codes == 255
    found = np.ldexp(np.float32(1), np.where(is_nan, 0, codes - 127))
    return np.where(is_nan, np.float32(np.nan), found)


def exponents(scales: np.ndarray) -> np.ndarray:
    """Inverse of `power_of_two`."""
    return (np.frexp(scales)[1] + 126).astype(np.uint8)
