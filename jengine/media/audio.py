"""Validates users' audio arrays and resamples them to the model's rate."""

from __future__ import annotations

from typing import Any

import numpy as np

from jengine.errors import RequestError

LEAST_RATE, MOST_RATE = 100, 768_000
AT_ONCE = 2**19  # values per batch of Fourier transforms


def samples_of(given: Any, rate: int, what: str) -> np.ndarray:
    """Samples f32 at `rate`, from (array, its rate) or an array already at `rate`. Raises
    RequestError."""
    own = rate
    if isinstance(given, (tuple, list)) and len(given) == 2 and np.ndim(given[1]) == 0:
        given, own = given
    own = checked_rate(own, what)
    array = np.asarray(given)
    if array.dtype.kind not in "fiu" or array.ndim not in (1, 2) or not array.size:
        raise RequestError(
            f"{what} is an array of type {array.dtype} and shape {array.shape}; expected samples "
            "[samples] or [channels, samples] as floats, with their rate: (array, sampling_rate)."
        )
    if array.dtype.kind in "iu":
        raise RequestError(
            f"{what} has samples of type {array.dtype}; expected floats from -1 to 1. Divide "
            "integers by the largest number of their type."
        )
    array = array.astype(np.float32, copy=False)
    if not np.isfinite(array).all():
        raise RequestError(f"{what} has samples that are not finite numbers.")
    if array.ndim == 2:  # the shorter axis is the channels
        array = array.mean(axis=int(array.shape[0] > array.shape[1]))
    return resampled(array, own, rate)


def checked_rate(given: Any, what: str) -> int:
    """Validate a sampling rate. Raises RequestError."""
    is_number = isinstance(given, (int, float, np.integer, np.floating))
    if not is_number or given != int(given) or not LEAST_RATE <= given <= MOST_RATE:
        raise RequestError(
            f"{what} has the sampling rate {given!r}; expected a whole number of samples in a "
            f"second, from {LEAST_RATE} to {MOST_RATE}."
        )
    return int(given)


def resampled(samples: np.ndarray, own: int, wanted: int) -> np.ndarray:
    """Band-limited resampling by cropping or padding the spectrum. Silence on both sides avoids
    wrap-around."""
    if own == wanted:
        return samples
    margin = own // 10
    length = len(samples) + 2 * margin
    seconds = -(-length // own)  # over whole seconds both rates give whole numbers of samples
    count = seconds * wanted
    bins = min(count, seconds * own) // 2 + 1
    spectrum = lowest_bins(samples, margin, own, seconds, bins)
    found = np.fft.irfft(spectrum, count) * (wanted / own)
    begin = round(margin * wanted / own)
    return found[begin : begin + -(-len(samples) * wanted // own)].astype(np.float32)


def lowest_bins(samples: np.ndarray, before: int, rows: int, columns: int, bins: int) -> np.ndarray:
    """Lowest frequencies of zero-padded samples, c128[bins]; `before` zeros in front, rows x
    columns in all.

    A two-step Fourier transform: a single one takes many times the memory, above all for lengths
    with large factors.
    """
    whole = np.zeros((rows, columns), np.float32)
    whole.reshape(-1)[before : before + len(samples)] = samples
    half = np.empty((rows // 2 + 1, columns), np.complex64)  # the other half is its conjugate
    step = max(1, AT_ONCE // rows)
    for begin in range(0, columns, step):
        part = whole[:, begin : begin + step].astype(np.float64)
        half[:, begin : begin + step] = np.fft.rfft(part, axis=0)
    del whole
    found = np.empty((-(-bins // rows), rows), np.complex128)
    step, turns = max(1, AT_ONCE // columns), -2j * np.pi / (rows * columns)
    for begin in range(0, rows, step):
        index = np.arange(begin, min(begin + step, rows))
        is_other = index > rows // 2
        part = half[np.where(is_other, rows - index, index)].astype(np.complex128)
        part[is_other] = part[is_other].conj()
        part *= np.exp(turns * np.outer(index, np.arange(columns)))
        found[:, index] = np.fft.fft(part, axis=1)[:, : len(found)].T
    return found.reshape(-1)[:bins]
