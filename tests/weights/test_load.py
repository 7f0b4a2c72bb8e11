"""Loading: whole and sharded checkpoints, dtypes, tied heads, placement, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx

from jengine.errors import CheckpointError, ConfigError
from jengine.models import registry
from jengine.models.parameter import named_parameters
from jengine.models.tensors.checkpoint import Piece
from jengine.weights.abstract import abstract_model
from jengine.weights.folder import open_checkpoint, read_model_config
from jengine.weights.safetensors_file import read_header, write_file
from jengine.weights.safetensors_io import load_model, load_params, save_pretrained
from jengine.weights.stored_parameter import StoredParameter
from tests.models.tiny_models import write_tiny, write_tiny_native

EMBED = "model.embed_tokens.weight"
Tensors = dict[str, np.ndarray]


def read_tensors(folder: Path) -> Tensors:
    return {name: np.array(tensor.read()) for name, tensor in open_checkpoint(folder).items()}


def write_tensors(file: Path, tensors: Tensors) -> None:
    declared = [(name, array.dtype, array.shape) for name, array in tensors.items()]
    write_file(file, declared, tensors.values())


def rewrite(folder: Path, **changed: np.ndarray | None) -> None:
    """Replace or remove (None) tensors; in names, '__' stands for '.'."""
    tensors = read_tensors(folder)
    for name, array in changed.items():
        if array is None:
            del tensors[name.replace("__", ".")]
        else:
            tensors[name.replace("__", ".")] = array
    write_tensors(folder / "model.safetensors", tensors)


def set_config(folder: Path, **changed: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changed}))


def shard(folder: Path, parts: int = 3) -> dict[str, str]:
    """Split model.safetensors into shards with an index; gives the index's map."""
    tensors = read_tensors(folder)
    (folder / "model.safetensors").unlink()
    weight_map = {}
    for part in range(parts):
        chosen = {name: tensors[name] for name in sorted(tensors)[part::parts]}
        file = f"model-{part + 1:05}-of-{parts:05}.safetensors"
        write_tensors(folder / file, chosen)
        weight_map |= dict.fromkeys(chosen, file)
    write_index(folder, weight_map)
    return weight_map


def write_index(folder: Path, weight_map: object) -> None:
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def assert_same_values(one: nnx.Module, other: nnx.Module) -> None:
    for (path, left), (_, right) in zip(
        named_parameters(one), named_parameters(other), strict=True
    ):
        np.testing.assert_array_equal(
            np.asarray(left.get_value()), np.asarray(right.get_value()), err_msg=path
        )


def test_round_trip_is_exact(tmp_path: Path) -> None:
    for dtype in ("float32", "bfloat16", "float16"):
        folder = write_tiny_native(tmp_path / dtype, "qwen2", dtype=dtype)
        model = load_model(folder)
        save_pretrained(model, tmp_path / "again")
        again = load_model(tmp_path / "again")
        assert_same_values(model, again)
        assert again.config == model.config
        assert nnx.split(model)[0] == nnx.split(again)[0]  # nothing else differs either
        first, second = (tmp_path / name / "model.safetensors" for name in (dtype, "again"))
        assert first.read_bytes() == second.read_bytes()


def test_a_loaded_model_is_as_declared(tmp_path: Path) -> None:
    """Setting values leaves no trace: same graph, same metadata as the declarations."""
    model = load_model(write_tiny_native(tmp_path, "qwen3"))
    built = abstract_model(model.config)
    assert nnx.split(model)[0] == nnx.split(built)[0]
    assert jax.tree.structure(nnx.state(model)) == jax.tree.structure(nnx.state(built))


def test_shards(tmp_path: Path) -> None:
    whole = load_model(write_tiny_native(tmp_path, "llama"))
    shard(tmp_path)
    assert_same_values(load_model(tmp_path), whole)


def test_shards_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    whole = load_model(write_tiny(tmp_path / "whole", "llama"))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    theirs.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert (tmp_path / "shards" / "model.safetensors.index.json").exists()
    assert_same_values(load_model(tmp_path / "shards"), whole)


def test_shards_may_be_links(tmp_path: Path) -> None:
    """Download caches store the data elsewhere and link to it."""
    folder = write_tiny_native(tmp_path / "folder", "llama")
    whole = load_model(folder)
    for file in set(shard(folder).values()):
        (folder / file).rename(tmp_path / file)
        (folder / file).symlink_to(tmp_path / file)
    assert_same_values(load_model(folder), whole)


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [
        ("float32", "bfloat16"),
        ("bfloat16", "float32"),
        ("float16", "bfloat16"),
        ("float32", "float16"),
    ],
)
def test_dtypes_are_converted(stored: str, wanted: str, tmp_path: Path) -> None:
    folder = write_tiny_native(tmp_path, "qwen3", dtype=stored)
    embed = read_tensors(folder)[EMBED]
    model = load_model(folder, dtype=wanted)
    assert model.config.dtype == wanted
    expected = np.asarray(jnp.asarray(embed).astype(wanted))
    np.testing.assert_array_equal(np.asarray(model.embed.weight.get_value()), expected)
    assert load_model(folder, dtype=jnp.dtype(wanted)).config.dtype == wanted


def test_unknown_dtypes_are_refused(tmp_path: Path) -> None:
    folder = write_tiny_native(tmp_path, "llama")
    for wrong in ("int8", "half please", None, 3, "float64"):
        with pytest.raises(ConfigError, match="dtype"):
            load_model(folder, dtype=wrong)


def test_values_beyond_float16_are_refused(tmp_path: Path) -> None:
    folder = write_tiny_native(tmp_path, "llama")
    norm = read_tensors(folder)["model.norm.weight"]
    norm[3] = 1e6
    rewrite(folder, model__norm__weight=norm)
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight.*beyond float16"):
        load_model(folder, dtype="float16")
    assert load_model(folder, dtype="bfloat16").norm.weight[3] > 9e5


def test_infinities_and_nan_pass_through(tmp_path: Path) -> None:
    """Whether they are wanted is not the loader's to say; it must neither fail nor warn."""
    folder = write_tiny_native(tmp_path, "llama")
    norm = read_tensors(folder)["model.norm.weight"]
    norm[:3] = np.nan, np.inf, -np.inf
    rewrite(folder, model__norm__weight=norm)
    for dtype in ("float16", "bfloat16", "float32"):
        found = np.asarray(load_model(folder, dtype=dtype).norm.weight.get_value(), np.float32)
        np.testing.assert_array_equal(found[:3], [np.nan, np.inf, -np.inf])


def test_a_tied_head_in_the_file_must_be_a_copy(tmp_path: Path) -> None:
    folder = write_tiny_native(tmp_path, "llama", tie_word_embeddings=True)
    embed = read_tensors(folder)[EMBED]
    rewrite(folder, lm_head__weight=embed)
    load_model(folder)
    rewrite(folder, lm_head__weight=embed + 1)
    with pytest.raises(CheckpointError, match=r"lm_head\.weight.*differs.*tie_word_embeddings"):
        load_model(folder)
    rewrite(folder, lm_head__weight=embed.astype(np.float16))
    with pytest.raises(CheckpointError, match="differs"):
        load_model(folder)


def test_an_untied_model_needs_its_head(tmp_path: Path) -> None:
    folder = write_tiny_native(tmp_path, "llama")
    rewrite(folder, lm_head__weight=None)
    with pytest.raises(CheckpointError, match=r"missing.*lm_head\.weight.*tie_word_embeddings"):
        load_model(folder)


def test_rotary_frequencies_of_old_files_are_skipped(tmp_path: Path) -> None:
    folder = write_tiny_native(tmp_path, "llama")
    rewrite(
        folder,
        model__layers__0__self_attn__rotary_emb__inv_freq=np.ones(4, np.float32),
        model__rotary_emb__inv_freq=np.ones(4, np.float32),
    )
    load_model(folder)


def test_missing_and_unknown_tensors_are_named(tmp_path: Path) -> None:
    folder = write_tiny_native(tmp_path, "llama")
    set_config(folder, num_hidden_layers=4)
    with pytest.raises(CheckpointError) as caught:
        load_model(folder)
    assert "model.layers.2.input_layernorm.weight" in str(caught.value)
    assert "and 8 more" in str(caught.value)
    set_config(folder, num_hidden_layers=1)
    with pytest.raises(CheckpointError, match=r"no place for: model\.layers\.1\."):
        load_model(folder)


def test_tensors_of_no_numbers_need_no_place(tmp_path: Path) -> None:
    """transformers writes such for shared experts that are none."""
    folder = write_tiny_native(tmp_path, "llama")
    rewrite(folder, model__layers__0__mlp__extra__weight=np.ones((0, 32), np.float32))
    load_model(folder)


def test_shapes_are_compared_readably(tmp_path: Path) -> None:
    folder = write_tiny_native(tmp_path, "llama")
    set_config(folder, vocab_size=98, intermediate_size=2**31 - 1)
    with pytest.raises(CheckpointError) as caught:
        load_model(folder)
    assert f"{EMBED!r} has shape (97, 32), expected (98, 32)" in str(caught.value)


def test_stored_types_that_are_not_read_are_named(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    safetensors_torch = pytest.importorskip("safetensors.torch")
    folder = write_tiny_native(tmp_path, "llama")
    file = folder / "model.safetensors"
    for dtype, name in ((torch.float8_e4m3fn, "F8_E4M3"), (torch.int64, "I64")):
        tensors = safetensors_torch.load_file(file)
        tensors["model.norm.weight"] = tensors["model.norm.weight"].to(dtype)
        safetensors_torch.save_file(tensors, file)
        with pytest.raises(CheckpointError, match=rf"model\.norm\.weight.*stored as {name}.*BF16"):
            load_model(folder)


def test_only_safetensors_are_read(tmp_path: Path) -> None:
    folder = write_tiny_native(tmp_path, "llama")
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="found no weights"):
        load_model(folder)
    for name in ("pytorch_model.bin", "a.pt", "a.pth", "a.ckpt", "a.h5"):
        (folder / name).write_bytes(b"x")
        with pytest.raises(CheckpointError, match=rf"{name}.*Convert them to safetensors"):
            load_model(folder)
        (folder / name).unlink()
    (folder / "model-00001-of-00002.safetensors").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"index\.json.*found only model-00001"):
        load_model(folder)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = write_tiny_native(tmp_path, "llama")
    shard(folder)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"'model-00002-of-00003\.safetensors' is missing"):
        load_model(folder)


@pytest.mark.parametrize(
    "outside",
    ["../model.safetensors", "/etc/x.safetensors", "a/b.safetensors", "..", "", "a\\b.safetensors",
     "a\0.safetensors", 3, None, "weights.bin"],
)  # fmt: skip
def test_shards_stay_inside_the_folder(outside: object, tmp_path: Path) -> None:
    folder = write_tiny_native(tmp_path / "model", "llama")
    weight_map: dict[str, object] = {**shard(folder), EMBED: outside}
    (tmp_path / "model.safetensors").write_bytes(b"x")
    write_index(folder, weight_map)
    with pytest.raises(CheckpointError, match="same folder"):
        load_model(folder)


def test_an_index_must_agree_with_its_shards(tmp_path: Path) -> None:
    folder = write_tiny_native(tmp_path, "llama")
    right = shard(folder)
    first, second = sorted(set(right.values()))[:2]
    elsewhere = {name: first if file == second else file for name, file in right.items()}
    wrong_maps: list[tuple[object, str]] = [
        (elsewhere, "holds no"),
        ({**right, EMBED: first if right[EMBED] != first else second}, "does not say"),
        ({name: file for name, file in right.items() if name != EMBED}, "does not say"),
        ({**right, "model.ghost": first}, "ghost"),
        ({}, "weight_map"),
        ([1], "weight_map"),
        (None, "weight_map"),
    ]
    for weight_map, expected in wrong_maps:
        write_index(folder, weight_map)
        with pytest.raises(CheckpointError, match=expected):
            load_model(folder)
    (folder / "model.safetensors.index.json").write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match="cannot be read as JSON"):
        load_model(folder)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_native(tmp_path, "llama")
    weight_map = shard(folder)
    for file in set(weight_map.values()) - {weight_map[EMBED]}:
        write_tensors(folder / file, {EMBED: np.ones(3, np.float32)})
    with pytest.raises(CheckpointError):
        load_model(folder)


def test_params_come_one_by_one_and_are_placed_by_axes(tmp_path: Path) -> None:
    folder = write_tiny_native(tmp_path, "qwen3")
    config = read_model_config(folder)
    seen: list[tuple[str, tuple[str | None, ...]]] = []

    def place(path: str, axes: tuple[str | None, ...], array: np.ndarray) -> jax.Array:
        seen.append((path, axes))
        return jnp.asarray(array)

    model = abstract_model(config)
    values = load_params(
        folder,
        model,
        registry.checkpoint_map(config),
        registry.ignored_tensors(config),
        place=place,
    )
    declared = [(path, leaf.get_metadata()["axes"]) for path, leaf in named_parameters(model)]
    assert seen == declared
    assert list(values) == [path for path, _ in declared]
    assert ("layers.0.attention.qkv.weight", ("embed", "kv_heads", None, None)) in seen


def test_progress_counts_every_byte(tmp_path: Path) -> None:
    folder = write_tiny_native(tmp_path, "llama", dtype="bfloat16")

    class Bar:
        def __init__(self, label: str, total: int):
            self.label, self.total, self.done, self.closed = label, total, 0, False

        def update(self, n: float) -> None:
            self.done += int(n)

        def close(self) -> None:
            self.closed = True

    bars: list[Bar] = []

    def progress(label: str, total: int) -> Bar:
        bars.append(Bar(label, total))
        return bars[-1]

    load_model(folder, progress=progress)
    (bar,) = bars
    assert bar.label == "Loading weights"
    assert bar.closed
    assert bar.done == bar.total == sum(array.nbytes for array in read_tensors(folder).values())


def test_an_interrupted_save_leaves_the_old_file(tmp_path: Path) -> None:
    write_tensors(tmp_path / "x.safetensors", {"a": np.ones(2, np.float32)})
    before = (tmp_path / "x.safetensors").read_bytes()
    declared = [(name, np.dtype(np.float32), (2,)) for name in "ab"]
    with pytest.raises(ValueError):
        write_file(tmp_path / "x.safetensors", declared, [np.ones(2, np.float32)])
    with pytest.raises(ValueError, match="not as declared"):
        write_file(tmp_path / "x.safetensors", declared, [np.ones(3, np.float32)] * 2)
    assert [file.name for file in tmp_path.iterdir()] == ["x.safetensors"]
    assert (tmp_path / "x.safetensors").read_bytes() == before


def test_the_reference_implementation_reads_our_files(tmp_path: Path) -> None:
    safetensors_numpy = pytest.importorskip("safetensors.numpy")
    tensors = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "empty": np.zeros((0, 4), np.float16),
        "b": np.arange(5, dtype=np.float16),
    }
    write_tensors(tmp_path / "model.safetensors", tensors)
    found = safetensors_numpy.load_file(tmp_path / "model.safetensors")
    assert {name: array.tolist() for name, array in found.items()} == {
        name: array.tolist() for name, array in tensors.items()
    }
    assert read_tensors(tmp_path)["empty"].shape == (0, 4)
    wide = {"c": np.ones(3, ml_dtypes.bfloat16)}
    write_tensors(tmp_path / "model.safetensors", wide)
    assert read_tensors(tmp_path)["c"].dtype == ml_dtypes.bfloat16


def test_a_parameter_is_copied_out_of_its_file_once(tmp_path: Path) -> None:
    """JAX takes over the memory that the file was read into; the file may then go or change."""
    values = np.arange(96 * 40, dtype=np.float32).reshape(96, 40)
    file = tmp_path / "model.safetensors"
    write_tensors(file, {"w": values})
    tensor = read_header(file)["w"]
    for piece, expected in (
        (Piece("w", (96, 40)), values),
        (Piece("w", (96, 40), transpose=True), values.T),
    ):
        read = np.asarray(StoredParameter(expected.shape, np.dtype(np.float32), ((piece, tensor),)))
        placed = jax.device_put(read)
        assert placed.unsafe_buffer_pointer() == read.ctypes.data
        # A donated parameter must not be overwritten in place while numpy can see it.
        doubled = jax.jit(lambda x: x * 2, donate_argnums=0)(placed)
        np.testing.assert_array_equal(doubled, expected * 2)
        np.testing.assert_array_equal(read, expected)
    parameter = StoredParameter((96, 40), np.dtype(np.float32), ((Piece("w", (96, 40)), tensor),))
    placed = jax.device_put(np.asarray(parameter))
    with file.open("r+b") as stream:  # in place, where the mapping would see it
        stream.write(b"\0" * file.stat().st_size)
    file.unlink()
    np.testing.assert_array_equal(placed, values)


def test_a_declared_model_is_the_real_one_without_values(tmp_path: Path) -> None:
    write_tiny_native(tmp_path, "llama")
    config = read_model_config(tmp_path)
    dtype = jnp.dtype(config.dtype)
    traced = nnx.eval_shape(lambda: registry.build(config, dtype=dtype, rngs=nnx.Rngs(0)))
    (graph, leaves), (wanted_graph, wanted) = nnx.split(abstract_model(config)), nnx.split(traced)
    assert graph == wanted_graph
    assert jax.tree.structure(leaves) == jax.tree.structure(wanted)
    assert jax.tree.leaves(leaves) == jax.tree.leaves(wanted)
