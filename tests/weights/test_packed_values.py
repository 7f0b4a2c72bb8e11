"""Packed integers against packing written down bit by bit, as each format defines it."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from jengine.weights import packed_values as packed

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def random(bits: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 2**bits, shape)


def words_along_rows(values: np.ndarray, bits: int) -> np.ndarray:
    """int32 [rows, words]: value j of a row is in bits of word j // n, lowest first."""
    per_word = 32 // bits
    found = np.zeros((len(values), values.shape[1] // per_word), np.uint64)
    for row, column in np.ndindex(*values.shape):
        shift = bits * (column % per_word)
        found[row, column // per_word] |= np.uint64(int(values[row, column]) << shift)
    return found.astype(np.uint32).view(np.int32)


def as_declared(values: np.ndarray, bits: int) -> np.ndarray:
    """[outputs, inputs] unsigned, in the form of `QuantizedWeights`."""
    if bits == 8:
        return (values.astype(int) - 128).astype(np.int8)
    return (values[:, 0::2] + 16 * values[:, 1::2]).astype(np.uint8)


@pytest.mark.parametrize("bits", [4, 8])
def test_compressed_tensors_packs_along_the_inputs(bits: int) -> None:
    values = random(bits, 5, 16)
    found = packed.values_along_inputs(words_along_rows(values, bits), bits)
    np.testing.assert_array_equal(found, as_declared(values, bits))
    assert found.dtype == (np.uint8 if bits == 4 else np.int8)


@pytest.mark.parametrize("bits", [4, 8])
def test_gptq_packs_along_the_inputs_of_each_column(bits: int) -> None:
    values = random(bits, 5, 16)  # [outputs, inputs]
    words = words_along_rows(values, bits).T
    np.testing.assert_array_equal(packed.values_along_rows(words, bits), as_declared(values, bits))


def test_awq_packs_along_the_outputs_in_its_own_order() -> None:
    values = random(4, 6, 16)  # [inputs, outputs]
    shuffled = np.concatenate([values[:, 8 * i + np.array(AWQ_ORDER)] for i in range(2)], axis=1)
    words = words_along_rows(shuffled, 4)
    np.testing.assert_array_equal(packed.awq_columns(words), values)
    np.testing.assert_array_equal(packed.awq_values(words), as_declared(values.T, 4))


@pytest.mark.parametrize("bits", [4, 8])
def test_words_and_values_are_inverse(bits: int) -> None:
    values = random(bits, 3, 16).astype(np.uint8)
    words = packed.packed_words(values, bits)
    np.testing.assert_array_equal(words, words_along_rows(values, bits))
    np.testing.assert_array_equal(packed.unsigned_values(words, bits), values)
    # Rows that do not fill their last word are padded with zeros.
    np.testing.assert_array_equal(
        packed.unsigned_values(packed.packed_words(values[:, :9], bits), bits)[:, :9],
        values[:, :9],
    )


def test_pairs_and_values_are_inverse() -> None:
    values = random(4, 3, 10).astype(np.uint8)
    np.testing.assert_array_equal(packed.unpaired(packed.pairs(values)), values)


def test_scales_of_blocks_stand_for_each_output() -> None:
    scales = np.arange(6, dtype=np.float32).reshape(3, 2)  # of blocks of four outputs, ten in all
    found = packed.scales_per_output(scales, 10, 2, 4)
    np.testing.assert_array_equal(found, scales[np.arange(10) // 4])
    for one in (np.float32(2), np.full(1, 2, np.float32), np.full((1, 1), 2, np.float32)):
        np.testing.assert_array_equal(packed.scales_per_output(one, 3, 2), np.full((3, 2), 2.0))
    column = np.arange(3, dtype=ml_dtypes.bfloat16)
    found = packed.scales_per_output(column, 3, 1)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, [[0], [1], [2]])


def test_exponents_are_powers_of_two() -> None:
    found = packed.power_of_two(np.array([0, 126, 127, 130, 254, 255], np.uint8))
    np.testing.assert_array_equal(found[:5], [2.0**-127, 0.5, 1.0, 8.0, 2.0**127])
    assert np.isnan(found[5])
