"""Weight transfer between engines (load_format="peer"): a running engine serves, a starting one
fetches.

In: the settings and a running model; or a model's declarations. Out: a server that closes with the
model; or placed parameters, with a bounded number of bytes in flight.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jengine.config import ModelConfig
from jengine.connectors.weight_peers import (
    ParameterInfo,
    WeightClient,
    WeightList,
    WeightServer,
    pieces,
)
from jengine.connectors.weight_settings import WeightSettings
from jengine.errors import CheckpointError, ConfigError, UnsupportedFeature
from jengine.models.parameter import named_parameters
from jengine.runner.loaded_model import LoadedModel
from jengine.weights.abstract import NamedArray, Place
from sharding.jax_settings import engine_context

logger = logging.getLogger(__name__)
# Pieces in flight per reader, so that readers stay busy while a parameter is placed.
AHEAD = 2


class ServedWeights:
    """Snapshot of a running model's weights, taken when the list is requested; prepared weights are
    restored for it."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self._version = 0
        self._leaves: Any = None
        self._arrays: Mapping[str, jax.Array] = {}
        self._last: tuple[str, memoryview] | None = None

    @engine_context()
    def listed(self) -> WeightList:
        """List the parameters, under a new version if they were replaced since the last call."""
        leaves = self._loaded.leaves
        if not leaves:
            raise CheckpointError("this engine has no parameters now: it sleeps.")
        if leaves is not self._leaves:
            try:
                arrays = self._loaded.parameters()
            except RuntimeError as error:  # arrays were deleted concurrently
                raise CheckpointError("parameters are being replaced. Ask again.") from error
            self._version, self._leaves, self._arrays = self._version + 1, leaves, arrays
            self._last = None
        found = [
            ParameterInfo(name, jnp.dtype(array.dtype).name, tuple(array.shape))
            for name, array in self._arrays.items()
        ]
        return WeightList(self._version, found)

    @engine_context()
    def piece(self, name: str, version: int, begin: int, end: int) -> memoryview:
        """Bytes `begin` to `end` of a parameter. Raises CheckpointError for another version."""
        if version != self._version or self._loaded.leaves is not self._leaves:
            self._arrays, self._leaves, self._last = {}, None, None
            raise CheckpointError("parameters have been replaced meanwhile. Start again.")
        if name not in self._arrays:
            raise CheckpointError(f"there is no parameter {name!r}.")
        if self._last is None or self._last[0] != name:
            try:
                self._last = name, bytes_of(on_host(self._arrays[name]))
            except RuntimeError as error:  # the array was deleted concurrently
                raise CheckpointError("parameters are being replaced. Start again.") from error
        return self._last[1][begin:end]


def serve_weights(settings: WeightSettings | None, loaded: LoadedModel) -> None:
    """Serve the model's parameters until it is closed, if `settings` has an address."""
    if settings is None or settings.serve is None:
        return
    if len(loaded.placement.processes) > 1:
        raise UnsupportedFeature(
            "model_loader_extra_config={'serve': ...} with devices of several processes: each has "
            "a part of the weights. Serve them from an engine of one process."
        )
    server = WeightServer(settings, ServedWeights(loaded))
    loaded.closing.append(server.close)


def refuse_rounded(settings: WeightSettings, config: ModelConfig) -> None:
    """Raise for weights quantized at load: the server no longer has the originals that the peer
    declares, and quantizing again would change them."""
    if config.quantization is None or not config.quantization.on_load:
        return
    if settings.peer is not None:
        raise UnsupportedFeature(
            "load_format='peer' with weights that are rounded at load: a peer has them rounded, "
            "and not what they were. Leave quantization out, take a checkpoint that is quantized, "
            "or give the engine a folder with the weights."
        )
    raise UnsupportedFeature(
        "model_loader_extra_config={'serve': ...} with weights that are rounded at load: others "
        "would take them for what is in the folder. Leave quantization out, or take a checkpoint "
        "that is quantized."
    )


def peer_parameters(
    settings: WeightSettings, declared: nnx.Module, place: Place, bar: Callable[..., Any]
) -> Iterator[NamedArray]:
    """Placed parameters fetched from another engine, in declaration order."""
    client = WeightClient(settings)
    readers = ThreadPoolExecutor(settings.readers, "weights-read")
    try:
        listed = client.listed()
        given = {one.name: one for one in listed.parameters}
        wanted = dict(named_parameters(declared))
        check_listed(wanted, given, str(settings.peer))
        total = sum(map(size_of, given.values()))
        with bar(total=total, desc="Weights of a peer", unit="B", unit_scale=True) as shown:
            read = partial(client.piece, version=listed.version)
            most = AHEAD * settings.readers
            for name, array in in_order(list(map(given.get, wanted)), readers, read, most):
                yield name, place(name, wanted[name].get_metadata()["axes"], array)
                shown.update(array.nbytes)
        logger.info("%d parameters came from %s", len(given), settings.peer)
    finally:
        readers.shutdown(cancel_futures=True)
        client.close()


def in_order(
    wanted: list[Any], readers: ThreadPoolExecutor, read: Callable[..., memoryview], most: int
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield whole parameters in order, with a bounded number of pieces in flight."""
    todo = deque((one, *ends) for one in wanted for ends in pieces(size_of(one)))
    coming: deque[tuple[ParameterInfo, int, Future[memoryview]]] = deque()
    for one in wanted:
        data = np.empty(size_of(one), np.uint8)
        missing = len(pieces(len(data)))
        while missing:
            while todo and len(coming) < most:
                asked, begin, end = todo.popleft()
                coming.append(
                    (asked, begin, readers.submit(read, asked.name, begin=begin, end=end))
                )
            owner, begin, future = coming.popleft()
            assert owner is one, "pieces come in the order in which they were asked for"
            found = np.frombuffer(future.result(), np.uint8)
            data[begin : begin + len(found)] = found
            missing -= 1
        yield one.name, data.view(jnp.dtype(one.dtype)).reshape(one.shape)


def check_listed(wanted: Mapping[str, Any], given: Mapping[str, ParameterInfo], peer: str) -> None:
    """Raise ConfigError if the other engine's parameters differ from the model's."""
    own = {
        name: ParameterInfo(name, jnp.dtype(one.dtype).name, tuple(one.shape))
        for name, one in wanted.items()
    }
    for name in [*own, *given]:
        if own.get(name) != given.get(name):
            raise ConfigError(
                f"load_format='peer': {peer} serves another model: it has {given.get(name)}, and "
                f"this one declares {own.get(name)}. Give the same model and dtype."
            )


def size_of(one: ParameterInfo) -> int:
    return math.prod(one.shape) * jnp.dtype(one.dtype).itemsize


def on_host(array: jax.Array) -> np.ndarray:
    """An array's values on the host. Read through a new array over the same buffers: JAX caches the
    host copy in the array that was read."""
    buffers = [shard.data for shard in array.addressable_shards]
    return np.asarray(
        jax.make_array_from_single_device_arrays(array.shape, array.sharding, buffers)
    )


def bytes_of(array: np.ndarray) -> memoryview:
    """The bytes of an array in row-major order."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
