"""Orbax checkpoints: exact round trips, those of training loops, and what is refused."""

from __future__ import annotations

import asyncio
import gc
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as classic
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from orbax.checkpoint import v1

from jengine.errors import CheckpointError
from jengine.models.decoder import Decoder
from jengine.models.parameter import named_parameters
from jengine.models.stages import StageLayout
from jengine.weights.abstract import with_dtype
from jengine.weights.orbax_folder import find_checkpoint, is_orbax
from jengine.weights.orbax_io import load_orbax, nested, save_orbax
from jengine.weights.safetensors_io import load_model, save_pretrained
from jengine.weights.stage_places import StagePlaces
from sharding.mesh import one_device_mesh
from sharding.placement import Placement
from tests.marks import slow
from tests.models.tiny_models import write_tiny_native
from tests.weights.test_load import assert_same_values

PLACES = StagePlaces(Placement(one_device_mesh()), StageLayout(((0,),)))


def load(folder: Path, like: Decoder, **options: Any) -> Decoder:
    return load_orbax(folder, like.config, PLACES.sharding, **options)


def tree_of(model: Decoder) -> dict[str, Any]:
    return nested({path: leaf.get_value() for path, leaf in named_parameters(model)})


def flat_of(model: Decoder) -> dict[str, Any]:
    return {path: leaf.get_value() for path, leaf in named_parameters(model)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    """A tiny model whose values differ from one another."""
    return load_model(write_tiny_native(tmp_path_factory.mktemp("tiny"), "qwen3"))


@pytest.fixture(scope="module")
def trained(model: Decoder) -> dict[str, Any]:
    """What a small training loop has after two steps: parameters, moments and a step."""
    graph, state = nnx.split(model)
    optimizer = optax.adamw(1e-3)

    def loss(state: nnx.State, tokens: jax.Array) -> jax.Array:
        logits = nnx.merge(graph, state).score(tokens[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    def step(state: nnx.State, moments: Any, tokens: jax.Array) -> tuple[nnx.State, Any]:
        changes, moments = optimizer.update(jax.grad(loss)(state, tokens), moments, state)
        return optax.apply_updates(state, changes), moments

    moments = optimizer.init(state)
    tokens = jnp.arange(12).reshape(2, 6)
    for _ in range(2):
        state, moments = jax.jit(step)(state, moments, tokens)
    return {"params": state, "opt_state": moments, "step": 2}


@pytest.fixture(scope="module")
def after_training(model: Decoder, trained: dict[str, Any]) -> Decoder:
    return nnx.merge(nnx.split(model)[0], trained["params"])


# --- round trips ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_round_trips_are_exact(dtype: str, tmp_path: Path) -> None:
    """From safetensors to Orbax and back: the very same bytes."""
    first = load_model(write_tiny_native(tmp_path / "first", "qwen2", dtype=dtype))
    save_orbax(first, tmp_path / "orbax")
    again = load(tmp_path / "orbax", first)
    assert_same_values(again, first)
    assert nnx.split(again)[0] == nnx.split(first)[0]
    save_pretrained(again, tmp_path / "second")
    for name in ("model.safetensors", "config.json"):
        one, other = (tmp_path / folder / name for folder in ("first", "second"))
        assert one.read_bytes() == other.read_bytes()


def test_special_values_survive(tmp_path: Path, model: Decoder) -> None:
    tree = tree_of(model)
    odd = jnp.asarray([jnp.nan, jnp.inf, -jnp.inf, -0.0, 1e-45])
    tree["norm"]["weight"] = tree["norm"]["weight"].at[:5].set(odd)
    v1.save(tmp_path / "run", tree)
    found = np.asarray(load(tmp_path, model).norm.weight.get_value())
    expected = np.asarray(tree["norm"]["weight"])
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


def test_arrays_are_read_to_where_they_belong(
    tmp_path: Path, model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_orbax(model, tmp_path)
    asked: list[Any] = []
    orbax_load = v1.load

    def recorded(path: str, tree: Any, **options: Any) -> Any:
        asked.extend(jax.tree.leaves(tree))
        return orbax_load(path, tree, **options)

    monkeypatch.setattr(v1, "load", recorded)
    mesh = Mesh(np.array(jax.devices()[:1]), ("tp",))
    shardings = {
        "embed": NamedSharding(mesh, PartitionSpec(None, "tp")),
        "vocab": NamedSharding(mesh, PartitionSpec("tp")),
    }

    def where(path: str, axes: tuple[str | None, ...], shape: tuple[int, ...]) -> NamedSharding:
        if len(shape) != 2:
            return NamedSharding(mesh, PartitionSpec())
        return shardings["vocab" if axes[0] == "vocab" else "embed"]

    loaded = load_orbax(tmp_path, model.config, where)
    assert loaded.embed.weight.get_value().sharding == shardings["vocab"]
    assert loaded.head.weight.get_value().sharding == shardings["embed"]
    assert loaded.norm.weight.get_value().sharding == NamedSharding(mesh, PartitionSpec())
    # Orbax itself was told where: nothing was moved afterwards.
    held = {leaf.get_value().sharding for _, leaf in named_parameters(loaded)}
    assert {target.sharding for target in asked} == held
    again = load(tmp_path, model)
    for path, leaf in named_parameters(again):
        expected = PLACES.whole.sharding(leaf.get_metadata()["axes"], leaf.shape)
        assert leaf.get_value().sharding == expected, path


def test_loading_works_inside_a_running_event_loop(tmp_path: Path, model: Decoder) -> None:
    """As in a notebook."""
    save_orbax(model, tmp_path)

    async def inside() -> Decoder:
        return load(tmp_path, model)

    assert_same_values(asyncio.run(inside()), model)


# --- checkpoints of training loops ---------------------------------------------------------


def write_nested(folder: Path, trained: Any) -> None:
    v1.save(folder / "checkpoint", {**trained, "params": nnx.to_pure_dict(trained["params"])})


def write_state(folder: Path, trained: Any) -> None:
    v1.save(folder / "checkpoint", trained["params"])


def write_flat(folder: Path, trained: Any) -> None:
    values = nnx.to_flat_state(trained["params"])
    flat = {".".join(map(str, path)): leaf.get_value() for path, leaf in values}
    v1.save(folder / "checkpoint", {"parameters": flat, "optimizer": trained["opt_state"]})


def write_below_two_keys(folder: Path, trained: Any) -> None:
    v1.save(folder / "checkpoint", {"state": trained, "epoch": 1})


def write_steps(folder: Path, trained: Any) -> None:
    older = {**trained, "params": jax.tree.map(jnp.zeros_like, trained["params"])}
    with v1.training.Checkpointer(folder / "steps") as checkpointer:
        checkpointer.save(9, older)
        checkpointer.save(10, trained)


def write_checkpointables(folder: Path, trained: Any) -> None:
    parts = {"model": trained["params"], "optimizer": trained["opt_state"]}
    v1.save_checkpointables(folder / "checkpoint", parts)


def write_classic_manager(folder: Path, trained: Any) -> None:
    """Steps lie beside config.json."""
    older = {**trained, "params": jax.tree.map(jnp.zeros_like, trained["params"])}
    with classic.CheckpointManager(folder) as manager:
        for step, state in ((2, older), (9, older), (10, trained)):
            manager.save(step, args=classic.args.StandardSave(state))


def write_classic_parts(folder: Path, trained: Any) -> None:
    options = classic.CheckpointManagerOptions(step_prefix="step", step_format_fixed_length=6)
    parts = classic.args.Composite(
        params=classic.args.PyTreeSave(trained["params"]),
        opt_state=classic.args.PyTreeSave(trained["opt_state"]),
        notes=classic.args.JsonSave({"epoch": 1}),
    )
    with classic.CheckpointManager(folder / "checkpoints", options=options) as manager:
        manager.save(3, args=parts)


def write_classic_tree(folder: Path, trained: Any) -> None:
    classic.PyTreeCheckpointer().save(folder / "checkpoint", trained)


WRITERS = [
    write_state, write_steps, write_classic_tree,
    *slow(write_nested, write_flat, write_below_two_keys, write_checkpointables,
          write_classic_manager, write_classic_parts),
]  # fmt: skip


@pytest.mark.parametrize("write", WRITERS)
def test_checkpoints_of_training_loops(
    write: Callable[[Path, Any], None],
    trained: dict[str, Any],
    after_training: Decoder,
    tmp_path: Path,
) -> None:
    write(tmp_path, trained)
    assert is_orbax(tmp_path)
    assert_same_values(load(tmp_path, after_training), after_training)


def test_a_folder_may_be_the_checkpoint_itself(tmp_path: Path, model: Decoder) -> None:
    v1.save(tmp_path / "model", tree_of(model))
    assert find_checkpoint(tmp_path / "model") == tmp_path / "model"
    assert_same_values(load(tmp_path / "model", model), model)


def test_lists_and_numpy_arrays_fit_as_well(tmp_path: Path, model: Decoder) -> None:
    tree = jax.tree.map(np.asarray, tree_of(model))
    tree["layers"] = [tree["layers"][str(index)] for index in range(len(tree["layers"]))]
    v1.save(tmp_path / "run", {"model": tree})
    assert_same_values(load(tmp_path, model), model)


def test_only_parameters_are_read(
    tmp_path: Path, trained: dict[str, Any], after_training: Decoder
) -> None:
    """The data of the optimizer may be gone."""
    checkpointer = classic.PyTreeCheckpointer(use_ocdbt=False)
    checkpointer.save(tmp_path / "run", {key: trained[key] for key in ("params", "opt_state")})
    moments = [path for path in (tmp_path / "run").iterdir() if path.name.startswith("opt_state")]
    assert moments
    for folder in moments:
        for chunk in folder.iterdir():
            if not chunk.name.startswith("."):
                chunk.unlink()
    assert_same_values(load(tmp_path, after_training), after_training)


def test_unfinished_steps_are_passed_over(tmp_path: Path, model: Decoder) -> None:
    v1.save(tmp_path / "7", tree_of(model))
    shutil.copytree(tmp_path / "7", tmp_path / "8.orbax-checkpoint-tmp-1")
    assert find_checkpoint(tmp_path) == tmp_path / "7"


def test_a_link_to_the_newest_step_is_no_second_checkpoint(tmp_path: Path, model: Decoder) -> None:
    for step in ("run/7", "run/12"):
        v1.save(tmp_path / step, tree_of(model))
    (tmp_path / "run" / "latest").symlink_to("12", target_is_directory=True)
    assert find_checkpoint(tmp_path) == tmp_path / "run" / "12"


def test_relative_paths(tmp_path: Path, model: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_orbax(model, Path("saved"))
    assert_same_values(load(Path("saved"), model), model)


# --- types ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [("float32", "bfloat16"), ("bfloat16", "float32"), ("float32", "float16")],
)
def test_types_are_converted_when_asked_for(
    stored: str, wanted: str, tmp_path: Path, model: Decoder
) -> None:
    values = jax.tree.map(lambda leaf: leaf.astype(stored), tree_of(model))
    v1.save(tmp_path / "run", values)
    config = with_dtype(model.config, wanted)
    with pytest.raises(CheckpointError, match=f"given {stored}, expected {wanted}.*dtype="):
        load_orbax(tmp_path, config, PLACES.sharding)
    found = flat_of(load_orbax(tmp_path, config, PLACES.sharding, cast=True))
    assert {str(array.dtype) for array in found.values()} == {wanted}
    expected = np.asarray(values["embed"]["weight"].astype(wanted))
    np.testing.assert_array_equal(np.asarray(found["embed.weight"]), expected)


def test_what_does_not_fit_into_float16_is_refused(tmp_path: Path, model: Decoder) -> None:
    tree = tree_of(model)
    tree["norm"]["weight"] = tree["norm"]["weight"].at[3].set(1e6)
    v1.save(tmp_path / "run", tree)
    config = with_dtype(model.config, "float16")
    with pytest.raises(CheckpointError, match=r"norm\.weight' holds values beyond float16"):
        load_orbax(tmp_path, config, PLACES.sharding, cast=True)


def test_integers_are_never_converted(tmp_path: Path, model: Decoder) -> None:
    v1.save(
        tmp_path / "run", {**tree_of(model), "embed": {"weight": jnp.zeros((97, 32), jnp.int8)}}
    )
    with pytest.raises(CheckpointError, match=r"embed\.weight: given int8, expected float32"):
        load(tmp_path, model, cast=True)


def test_a_model_of_two_types_is_not_saved(tmp_path: Path, model: Decoder) -> None:
    graph, state = nnx.split(model)
    state = jax.tree.map(lambda leaf: leaf.astype("bfloat16") if leaf.ndim == 1 else leaf, state)
    with pytest.raises(CheckpointError, match="expected one of"):
        save_orbax(nnx.merge(graph, state), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_names_of_earlier_checkpoints_are_read(tmp_path: Path, model: Decoder) -> None:
    """Before `Linear`, a weight was called like its module and a bias had `_bias` behind it."""
    flat = flat_of(model)
    kept = ("norm.weight", "before_attention.weight", "before_mlp.weight")
    old = {
        name if name.endswith(kept) else name.removesuffix(".weight").replace(".bias", "_bias"): x
        for name, x in flat.items()
    }
    assert {"embed", "layers.0.attention.qkv", "norm.weight"} <= set(old)
    v1.save(tmp_path / "run", {"params": old})
    for name, found in flat_of(load(tmp_path, model)).items():
        np.testing.assert_array_equal(np.asarray(found), np.asarray(flat[name]))


# --- what is refused -----------------------------------------------------------------------


def test_differences_are_listed(tmp_path: Path, model: Decoder) -> None:
    flat = flat_of(model)
    flat["extra.weight"] = jnp.zeros(3)
    flat["embed.weight"] = jnp.zeros((5, 32))
    flat["norm.weight"] = 7
    del flat["layers.1.mlp.down.weight"]
    v1.save(tmp_path / "run", {"params": flat, "step": 3})
    with pytest.raises(CheckpointError) as caught:
        load(tmp_path, model)
    text = str(caught.value)
    assert "layers.1.mlp.down.weight: missing" in text
    assert "extra.weight: not a parameter of this model" in text
    assert "embed.weight: given shape (5, 32), expected (97, 32)" in text
    assert "norm.weight: given a " in text
    assert "step" not in text


def test_long_lists_are_cut(tmp_path: Path, model: Decoder) -> None:
    v1.save(tmp_path / "run", {"embed": tree_of(model)["embed"]})
    with pytest.raises(CheckpointError, match=r"missing\n  and \d+ more"):
        load(tmp_path, model)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (("my_net",), "holds none of the model's parameters.*my_net.embed.weight"),
        (("opt_state", "mu"), "holds none of the model's parameters"),
        (("params", "model"), r"more than once, under 'state\.model' and 'state\.params'"),
    ],
)
def test_parameters_must_be_where_they_can_be_told(
    keys: tuple[str, ...], expected: str, tmp_path: Path, model: Decoder
) -> None:
    """An average or a moment of the optimizer has the same paths and shapes."""
    v1.save(tmp_path / "run", dict.fromkeys(keys, tree_of(model)))
    with pytest.raises(CheckpointError, match=expected):
        load(tmp_path, model)


def test_trees_with_other_names_are_refused(tmp_path: Path, model: Decoder) -> None:
    v1.save_checkpointables(tmp_path / "run", {"ema": tree_of(model)})
    with pytest.raises(CheckpointError, match=r"expected one called params.*found ema"):
        load(tmp_path, model)


def test_folders_without_a_checkpoint(tmp_path: Path, model: Decoder) -> None:
    (tmp_path / "sub").mkdir()
    for folder in (tmp_path, tmp_path / "absent"):
        assert not is_orbax(folder)
        with pytest.raises(CheckpointError, match="no Orbax checkpoint in this folder"):
            load(folder, model)


def test_several_checkpoints_that_are_no_steps(tmp_path: Path) -> None:
    for name in ("best", "last", "run_1", "run_2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "_METADATA").touch()
    with pytest.raises(
        CheckpointError, match=r"holds 4 .* not the steps of one run: .*best, .*last"
    ):
        find_checkpoint(tmp_path)
    for name in ("best", "last"):
        shutil.rmtree(tmp_path / name)
    assert find_checkpoint(tmp_path) == tmp_path / "run_2"
    (tmp_path / "run_02").mkdir()
    (tmp_path / "run_02" / "_METADATA").touch()
    with pytest.raises(CheckpointError, match="not the steps of one run"):
        find_checkpoint(tmp_path)


def damaged_files(folder: Path) -> list[Path]:
    """The files without which a checkpoint cannot be read, the largest with the data."""
    tree = folder / "orbax" / "state"
    data = max(tree.rglob("ocdbt.process_0/d/*"), key=lambda file: file.stat().st_size)
    return [tree / "_METADATA", tree / "_sharding", tree / "manifest.ocdbt", data]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_damaged_checkpoints_are_refused(
    tmp_path: Path, model: Decoder, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL + 1)
    save_orbax(model, tmp_path)
    for file in damaged_files(tmp_path):
        whole = file.read_bytes()
        for damaged in (b"", whole[: len(whole) // 2]):
            file.write_bytes(damaged)
            with pytest.raises(CheckpointError, match="cannot be read"):
                load(tmp_path, model)
        file.write_bytes(whole)
    gc.collect()  # Orbax abandons its other reads when one fails; that is reported here, not later
    assert_same_values(load(tmp_path, model), model)
    (tmp_path / "orbax" / "state" / "_METADATA").unlink()
    with pytest.raises(CheckpointError, match="no tree of parameters"):
        load(tmp_path, model)
