"""Random weights for load_format="dummy", made at memory speed.

In: a ModelConfig. Out: a model whose parameters have the declared means and deviations. For
measuring speed and memory only: noise repeats within large matrices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from flax import nnx

from jengine.config import ModelConfig
from jengine.layers.initializer import Initializer
from jengine.models.language_model import LanguageModel
from jengine.models.parameter import named_parameters
from jengine.weights.abstract import (
    NamedArray,
    Place,
    abstract_model,
    place_on_default_device,
    with_dtype,
    with_values,
)
from jengine.weights.device_copies import TransferLimit

# Length of the noise: a prime, so that the rows of a matrix start at different offsets.
NOISE_LENGTH = 1_048_573


def dummy_model(
    config: ModelConfig, dtype: Any = "auto", seed: int = 0, *, place: Place | None = None
) -> LanguageModel:
    """A model of random weights, deterministic in `seed`."""
    model = abstract_model(with_dtype(config, dtype))
    return with_values(model, dict(dummy_arrays(model, seed, place=place)))


def dummy_arrays(
    model: nnx.Module, seed: int = 0, *, place: Place | None = None
) -> Iterator[NamedArray]:
    """Yield the arrays of `dummy_model` lazily."""
    place = place or place_on_default_device
    generator = np.random.default_rng(seed)
    noise = generator.standard_normal(NOISE_LENGTH, np.float32)
    transfers = TransferLimit()
    for path, parameter in named_parameters(model):
        metadata = parameter.get_metadata()
        transfers.make_room(math.prod(parameter.shape) * parameter.dtype.itemsize)
        buffer = np.empty(parameter.shape, parameter.dtype)
        _fill(buffer, metadata["init"], noise, int(generator.integers(NOISE_LENGTH)))
        value = place(path, metadata["axes"], buffer)
        transfers.add(value, buffer.nbytes)
        yield path, value
        del value


def _fill(buffer: np.ndarray, init: Initializer, noise: np.ndarray, first: int) -> None:
    """Fill the buffer with noise, starting at `first` and repeating."""
    if init.stddev == 0.0:
        buffer.fill(init.mean)
        return
    flat = buffer.reshape(-1)
    length = min(math.prod(buffer.shape), len(noise))
    taken = np.concatenate((noise[first:], noise[:first]))[:length]
    values = init.mean + init.stddev * taken
    if np.issubdtype(buffer.dtype, np.integer):
        limits = np.iinfo(buffer.dtype)
        values = np.clip(np.round(values), limits.min, limits.max)
    values = values.astype(buffer.dtype)
    for start in range(0, len(flat), length):
        flat[start : start + length] = values[: len(flat) - start]
