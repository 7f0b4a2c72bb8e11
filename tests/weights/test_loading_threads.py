"""Threaded loading: same bits as a plain copy, same errors, bounded memory and open files."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import jax
import ml_dtypes
import numpy as np
import pytest

from jengine.errors import CheckpointError
from jengine.models import registry
from jengine.models.parameter import named_parameters
from jengine.models.tensors.checkpoint import Piece
from jengine.weights import device_copies, stored_parameter, tile_copy
from jengine.weights.abstract import abstract_model
from jengine.weights.folder import open_checkpoint, read_model_config
from jengine.weights.safetensors_io import load_model, load_params
from jengine.weights.stored_parameter import StoredParameter
from jengine.weights.tile_copy import TILE_ROWS, copy, copy_threads, run_tasks, task_regions
from tests.marks import slow
from tests.models.tiny_models import FAMILIES, write_tiny_native
from tests.weights.test_load import read_tensors, rewrite

# Families whose checkpoints are laid out in different ways: fused, turned, stacked, of experts.
LAYOUTS = ("llama", "gpt2", "phi3", "mixtral", "deepseek_v3", "gpt_oss", "llama4", "bamba",
           "qwen3_next", "gpt_neox")  # fmt: skip


@pytest.fixture
def many_small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny parameters are copied by four threads, in several tasks of several tiles each."""
    cores = set(range(4))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores, raising=False)
    monkeypatch.setattr(tile_copy, "TILE_ROWS", 4)
    monkeypatch.setattr(tile_copy, "TILE_BYTES", 96)
    for module in (tile_copy, stored_parameter):
        monkeypatch.setattr(module, "TASK_BYTES", 256)


def plain_parameters(folder: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Each parameter put together by assignment, one tensor after the other."""
    config = read_model_config(folder)
    tensors = registry.full_names(config, open_checkpoint(folder))
    pieces = registry.checkpoint_map(config)
    for path, parameter in named_parameters(abstract_model(config)):
        whole = np.empty(parameter.shape, parameter.dtype)
        for piece in pieces[path]:
            part = whole[piece.index]
            part[...] = piece.turned(tensors[piece.name].read()).reshape(part.shape)
        yield path, whole


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float32", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "family", [*LAYOUTS, *slow(*(name for name in FAMILIES if name not in LAYOUTS))]
)
def test_every_family_loads_as_a_plain_copy_would(
    family: str, dtype: str, tmp_path: Path, many_small_tasks: None
) -> None:
    folder = write_tiny_native(tmp_path, family, dtype=dtype)
    loaded = dict(named_parameters(load_model(folder)))
    for path, expected in plain_parameters(folder):
        found = np.asarray(loaded[path].get_value())
        assert found.dtype == expected.dtype
        assert found.tobytes() == expected.tobytes(), path


@pytest.mark.parametrize("inputs", [(300,), (3, 2, 50), (1, 400), (2,), (1,)])
@pytest.mark.parametrize("outputs", [(300,), (2, 3, 70), (5, 1, 129), (1,), (2, 1)])
@pytest.mark.parametrize("types", [(ml_dtypes.bfloat16,) * 2, (ml_dtypes.bfloat16, np.float32)])
def test_a_transposed_copy_fills_everything(
    inputs: tuple[int, ...], outputs: tuple[int, ...], types: Any
) -> None:
    stored, wanted = types
    size = math.prod(inputs) * math.prod(outputs)
    source = np.arange(size).astype(np.uint16).view(stored).reshape(math.prod(outputs), -1)
    values = source.T.reshape(*inputs, *outputs)
    assert size < 2 or values.base is not None
    room = np.zeros((*values.shape, 2), wanted)
    copy(room[..., 1], values, lambda values: values)
    assert room[..., 1].tobytes() == values.astype(wanted).tobytes()
    assert not room[..., 0].any()
    part = tuple(slice(size // 3, None) for size in values.shape)
    room[...] = 0
    copy(room[..., 0][part], values[part], lambda values: values)
    assert room[..., 0][part].tobytes() == values[part].astype(wanted).tobytes()
    assert not room[..., 1].any()


@pytest.mark.parametrize("unsplit", [0, 1, 2])
def test_regions_of_tasks_cover_a_part_once(unsplit: int) -> None:
    for shape in ((4096, 8, 6, 128), (1, 4096, 14336, 1), (3_000_000,), (1, 1), (64, 1, 50_000)):
        part = [slice(size // 4, size) for size in shape]
        regions = list(task_regions(part, 2, unsplit))
        (split,) = {
            axis for axis in range(len(shape)) if len({str(one[axis]) for one in regions}) > 1
        } or {0}
        bounds = [(one[split].start, one[split].stop) for one in regions]
        assert [begin for begin, _ in bounds[1:]] == [end for _, end in bounds[:-1]]
        assert (bounds[0][0], bounds[-1][1]) == (part[split].start, part[split].stop)
        sizes = [np.prod([one.stop - one.start for one in region]) * 2 for region in regions]
        row = sizes[0] // (bounds[0][1] - bounds[0][0])
        assert max(sizes) <= max(tile_copy.TASK_BYTES, row) + TILE_ROWS * row


def test_the_first_error_in_order_is_raised_whatever_finishes_first() -> None:
    late, begun = threading.Event(), threading.Event()
    ended: list[int] = []

    def slow() -> None:
        assert late.wait(60) and begun.wait(60)
        raise CheckpointError("first")

    def fast() -> None:
        late.set()
        raise CheckpointError("second")

    def last() -> None:
        begun.set()
        time.sleep(0.05)
        ended.append(1)

    with ThreadPoolExecutor(3) as pool:
        with pytest.raises(CheckpointError, match="first"):
            run_tasks([slow, fast, last], pool)
        assert ended == [1], "no task may still write to memory that the caller gives up"


def test_a_tensor_that_does_not_fit_is_named(tmp_path: Path, many_small_tasks: None) -> None:
    folder = write_tiny_native(tmp_path, "mixtral", dtype="float32")
    experts = [name for name in sorted(read_tensors(folder)) if "layers.1" in name and "w1" in name]
    changed = {name: np.full_like(read_tensors(folder)[name], 1e6) for name in experts}
    rewrite(folder, **{name.replace(".", "__"): array for name, array in changed.items()})
    for _ in range(5):
        with pytest.raises(CheckpointError) as caught:
            load_model(folder, dtype="float16")
        assert repr(experts[0]) in str(caught.value)


def test_a_file_that_disappears_is_named(tmp_path: Path, many_small_tasks: None) -> None:
    folder = write_tiny_native(tmp_path, "llama")
    config = read_model_config(folder)

    def place(path: str, axes: Any, values: Any) -> jax.Array:
        (folder / "model.safetensors").unlink(missing_ok=True)
        return jax.device_put(np.asarray(values))

    with pytest.raises(CheckpointError, match=r"model\.safetensors: '.*': cannot be read"):
        load_params(
            folder,
            abstract_model(config),
            registry.checkpoint_map(config),
            registry.ignored_tensors(config),
            place=place,
        )


def test_an_interrupt_ends_loading_and_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    halfway = threading.Event()
    ran: list[int] = []

    def task() -> None:
        ran.append(1)
        if len(ran) == 10:  # all tasks are queued by then, and the caller waits
            halfway.set()
        time.sleep(0.02)

    def interrupt() -> None:
        halfway.wait()
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    sender = threading.Thread(target=interrupt)
    sender.start()
    with pytest.raises(KeyboardInterrupt), copy_threads() as pool:
        run_tasks([task] * 2000, pool)
    sender.join()
    assert len(ran) < 1000
    wait_for_no_loading_threads()


def loading_threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name.startswith(tile_copy.THREAD_NAME)]


def wait_for_no_loading_threads() -> None:
    deadline = time.monotonic() + 60
    while loading_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not loading_threads()


def test_threads_end_with_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    with copy_threads() as pool:
        run_tasks([lambda: None] * 10, pool)
        assert 0 < len(loading_threads()) <= 3
    wait_for_no_loading_threads()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    with copy_threads() as pool:
        assert pool is None


class FakeDevice:
    """Keeps the host memory of each array until its copy is waited for."""

    def __init__(self) -> None:
        self.held: dict[int, int] = {}
        self.most = 0
        self.largest = 0

    def put(self, path: str, axes: Any, values: Any) -> jax.Array:
        read = np.asarray(values)
        array = jax.device_put(read)
        self.held[id(array)] = read.nbytes
        self.most = max(self.most, sum(self.held.values()))
        self.largest = max(self.largest, read.nbytes)
        return array

    def wait(self, array: jax.Array) -> None:
        del self.held[id(array)]


@pytest.mark.parametrize("limit", [0, 20_000])
def test_host_memory_of_parameters_in_flight_is_bounded(
    limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = FakeDevice()
    folder = write_tiny_native(tmp_path, "llama")
    monkeypatch.setattr(device_copies, "MOST_IN_FLIGHT", limit)
    monkeypatch.setattr(jax, "block_until_ready", device.wait)
    config = read_model_config(folder)
    values = load_params(
        folder,
        abstract_model(config),
        registry.checkpoint_map(config),
        registry.ignored_tensors(config),
        place=device.put,
    )
    assert sum(array.nbytes for array in values.values()) > 2 * limit
    assert device.most <= max(limit, device.largest)


def test_few_files_are_open_at_once() -> None:
    """A parameter of many experts is stored in more tensors than a process may open files."""
    live, most = set[int](), []

    class Memory(bytearray):
        """What a view of a file keeps open."""

    class Tensor:
        def __init__(self, name: str):
            self.name, self.file = name, "none"

        def read(self) -> np.ndarray:
            memory = Memory(np.ones((64, 64), np.float32).tobytes())
            live.add(id(memory))
            weakref.finalize(memory, live.discard, id(memory))
            most.append(len(live))
            return np.frombuffer(memory, np.float32).reshape(64, 64)

    class LateThreads(ThreadPoolExecutor):
        """Starts work when every task is queued."""

        queued, start = 0, threading.Event()

        def submit(self, task: Any, /, *args: Any, **options: Any) -> Any:
            self.queued += 1
            if self.queued == count:
                self.start.set()
            return super().submit(lambda: self.start.wait(60) and task())

    count = 400
    parts = tuple(
        (Piece(str(expert), (64, 64), (expert,), transpose=True), Tensor(str(expert)))
        for expert in range(count)
    )
    with LateThreads(4) as pool:
        parameter = StoredParameter((count, 64, 64), np.dtype(np.float32), cast(Any, parts), pool)
        assert parameter.nbytes > tile_copy.TASK_BYTES
        assert (np.asarray(parameter) == 1).all()
    assert len(most) == count
    assert max(most) <= 8
