"""A scheme that copies weights prepares each as it is loaded, so both forms are never in memory."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tqdm import tqdm

from jengine.assembly.model_source import load_parameters, open_model_source
from jengine.assembly.settings.args import EngineArgs
from jengine.models import registry
from jengine.models.stages import StageLayout, stage_layout
from jengine.runner.step.leaves import LeafOrder
from jengine.weights import device_copies
from jengine.weights.abstract import NamedArray
from jengine.weights.orbax_io import save_orbax
from jengine.weights.prepared import PreparedForm
from jengine.weights.safetensors_io import save_pretrained
from jengine.weights.stage_places import StagePlaces
from pallas_kernels.choice import cpu_problem
from sharding.mesh import one_device_mesh
from sharding.placement import Placement
from tests.models.parallel_family import ParallelFamily, arrays, model_of
from tests.models.tiny_models import write_tiny_native

# One that is being prepared, one that is being read, and one that the loader still holds.
FEW = 3


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTERED", {})
    registry.register_model(ParallelFamily())
    # Small parameters would all be waited for together.
    monkeypatch.setattr(device_copies, "MOST_IN_FLIGHT", 0)


class Watched:
    """Parameters on their way, and how many declared matrices were in memory at a time."""

    def __init__(self, values: Iterable[NamedArray]) -> None:
        self._values = values
        self._seen: list[weakref.ref[jax.Array]] = []
        self.count = self.most = 0

    def __iter__(self) -> Iterator[NamedArray]:
        for name, value in self._values:
            if name.startswith("layers.") and name.endswith(".weight") and value.ndim > 1:
                self._seen.append(weakref.ref(value))
                self.count += 1
            self.most = max(self.most, sum(one() is not None for one in self._seen))
            yield name, value
            del value


def loaded(
    folder: Path | str, backend: str | None = None, **settings: Any
) -> tuple[Watched, dict[str, np.ndarray]]:
    """Load as an engine does; the parameters are those that come back from the leaves."""
    args = EngineArgs.checked("LLM", model=folder, skip_tokenizer_init=True, **settings)
    source = open_model_source(args.groups.model)
    places = StagePlaces(Placement(one_device_mesh()), stage_layout(source.config, 1))
    model, values = load_parameters(args.groups.model, source, places, tqdm)
    order, watched = LeafOrder(model, places, backend), Watched(values)
    found = order.values(order.leaves(watched))
    return watched, {path: np.asarray(value) for path, value in found.items()}


def assert_prepared_one_by_one(watched: Watched) -> None:
    assert watched.count >= 8
    assert watched.most <= FEW


def test_safetensors_are_prepared_one_by_one(tmp_path: Path) -> None:
    model = model_of(1)
    save_pretrained(model, tmp_path)
    watched, found = loaded(tmp_path)
    assert_prepared_one_by_one(watched)
    expected = arrays(model)
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[path], value) for path, value in expected.items())


@pytest.mark.skipif(bool(cpu_problem()), reason=cpu_problem() or "runs")
def test_weights_are_packed_one_by_one(tmp_path: Path) -> None:
    """As the CPU kernels take them, and undone as parameters are asked for."""
    folder = write_tiny_native(tmp_path, "llama")
    watched, found = loaded(folder, backend="cpu")
    assert_prepared_one_by_one(watched)
    for path, value in loaded(folder)[1].items():
        np.testing.assert_array_equal(found[path], value)


def test_random_weights_are_prepared_one_by_one(tmp_path: Path) -> None:
    save_pretrained(model_of(1), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    assert_prepared_one_by_one(loaded(tmp_path, load_format="dummy")[0])


def test_arrays_of_an_orbax_checkpoint_are_freed_as_they_are_prepared(tmp_path: Path) -> None:
    """Orbax reads all arrays at once; each is freed when its prepared form is there."""
    model = model_of(1)
    save_orbax(model, tmp_path)
    watched, found = loaded(tmp_path, load_format="orbax")
    assert watched.count >= 8 and watched.most <= FEW
    assert all(np.array_equal(found[path], value) for path, value in arrays(model).items())


def test_values_that_are_missing_are_named() -> None:
    model = model_of(1)
    form = PreparedForm(model, StagePlaces(Placement(one_device_mesh()), StageLayout(((0,),))))
    with pytest.raises(AssertionError, match="head"):
        form.prepare([])
