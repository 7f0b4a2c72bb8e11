"""Pieces cover every parameter exactly once and can be undone."""

from __future__ import annotations

import importlib
import tracemalloc
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import pytest

from jengine.models import registry
from jengine.models.parameter import named_parameters
from jengine.models.tensors.checkpoint import Names, Piece, take_tensor, with_prefix
from jengine.weights.abstract import abstract_model
from jengine.weights.stored_parameter import StoredParameter
from tests.marks import slow
from tests.models.tiny_models import DISTINCT, FAMILIES, tiny_settings

NEVER_TIED, ALWAYS_TIED = ("phi",), ("zamba2",)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
def test_pieces_fill_each_parameter_exactly_once(family: str, tied: bool) -> None:
    tied = family in ALWAYS_TIED or (tied and family not in NEVER_TIED)
    settings = tiny_settings(family, tie_word_embeddings=tied, attention_bias=True)
    config = registry.model_config({**settings, "architectures": [FAMILIES[family]]})
    declared = dict(named_parameters(abstract_model(config)))
    pieces = registry.checkpoint_map(config)
    assert set(pieces) == set(declared)
    by_name: dict[str, list[Piece]] = {}
    for piece in (piece for found in pieces.values() for piece in found):
        by_name.setdefault(piece.name, []).append(piece)
    for name, parts in by_name.items():
        read = np.zeros(parts[0].shape, np.int32)
        for piece in parts:
            assert piece.shape == read.shape
            read.reshape(piece.viewed_shape)[piece.source] += 1
        assert (read == 1).all(), name
    for path, found in pieces.items():
        touched = np.zeros(declared[path].shape, np.int32)
        for piece in found:
            touched[piece.index] += 1
        assert (touched == 1).all(), path


class InMemory(NamedTuple):
    """A tensor as a file would have it."""

    name: str
    values: np.ndarray
    file: str = "none"

    def read(self) -> np.ndarray:
        return self.values


def stored(shape: tuple[int, ...], pieces: Iterable[Piece], tensors: Any) -> StoredParameter:
    """A parameter made of these tensors."""
    parts = tuple((piece, InMemory(piece.name, tensors[piece.name])) for piece in pieces)
    dtype = next(iter(tensors.values())).dtype
    return StoredParameter(shape, dtype, cast(Any, parts))


def declared_with_pieces(family: str) -> Iterator[tuple[str, Any, Sequence[Piece]]]:
    """Each parameter of a tiny model by its path, and what it is made of."""
    settings = tiny_settings(family, attention_bias=True)
    config = registry.model_config({**settings, "architectures": [FAMILIES[family]]})
    declared = dict(named_parameters(abstract_model(config)))
    for path, found in registry.checkpoint_map(config).items():
        yield path, declared[path], found


@pytest.mark.parametrize("family", FAMILIES)
def test_pieces_can_be_undone(family: str) -> None:
    random = np.random.default_rng(0)
    declared = list(declared_with_pieces(family))
    shapes = {piece.name: piece.shape for _, _, found in declared for piece in found}
    tensors = {
        name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()
    }
    parts: dict[str, list[tuple[np.ndarray, Piece]]] = {name: [] for name in tensors}
    for _, like, found in declared:
        parameter = np.asarray(stored(like.shape, found, tensors))
        for piece in found:
            parts[piece.name].append((parameter, piece))
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(take_tensor(parts[name]), tensor, err_msg=name)


def test_a_transposed_piece_splits_rows_into_heads() -> None:
    tensor = np.arange(6 * 3).reshape(6, 3)  # 2 heads of 3, hidden 3
    piece = Piece("x", (6, 3), (slice(None), slice(None), 0), transpose=True)
    parameter = np.asarray(stored((3, 2, 1, 3), [piece], {"x": tensor}))
    assert (parameter[1, 1, 0] == tensor[3:6, 1]).all()


def test_the_table_agrees_with_the_family_files() -> None:
    for architecture, module in registry.FAMILIES.items():
        assert architecture in importlib.import_module(module).ARCHITECTURES


def test_files_of_a_bare_model_get_their_full_names() -> None:
    names = Names(prefix="transformer.", embed="wte")
    assert with_prefix({"wte.weight": 1, "h.0": 2}, names) == {
        "transformer.wte.weight": 1,
        "transformer.h.0": 2,
    }
    nested = Names(prefix="model.decoder.", embed="wte")
    for given in ("wte.weight", "decoder.wte.weight", "model.decoder.wte.weight"):
        assert with_prefix({given: 1}, nested) == {"model.decoder.wte.weight": 1}
    whole = {"transformer.wte.weight": 1, "lm_head.weight": 2}
    assert with_prefix(whole, names) == whole


@pytest.mark.parametrize(
    "family", [*DISTINCT, *slow(*[one for one in FAMILIES if one not in DISTINCT])]
)
def test_any_part_of_a_parameter_can_be_read_alone(family: str) -> None:
    random = np.random.default_rng(0)
    for path, like, found in declared_with_pieces(family):
        tensors = {piece.name: random.standard_normal(piece.shape) for piece in found}
        parameter = stored(like.shape, found, tensors)
        whole = np.asarray(parameter)
        assert whole.shape == parameter.shape
        for _ in range(4):
            ends = [np.sort(random.integers(0, size + 1, 2)) for size in parameter.shape]
            region = tuple(slice(*map(int, pair)) for pair in ends)
            np.testing.assert_array_equal(parameter[region], whole[region], err_msg=path)
            np.testing.assert_array_equal(parameter[region[:1]], whole[region[:1]])
        indices = random.integers(0, parameter.size, 50)
        np.testing.assert_array_equal(parameter.elements(indices), whole.reshape(-1)[indices])


def test_a_part_takes_no_more_memory_than_it_has_numbers() -> None:
    tensor = np.ones((1024, 1024), np.float32)
    piece = Piece("x", tensor.shape, transpose=True)
    parameter = stored((1024, 8, 128), [piece], {"x": tensor})
    tracemalloc.start()
    part = parameter[slice(None), slice(0, 1), slice(None)]
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert part.shape == (1024, 1, 128)
    assert most < 1.2 * part.nbytes


def test_layers_that_draft_tokens_are_left_out() -> None:
    """DeepSeek-V3 has one more layer in its files than config.json counts."""
    settings = {**tiny_settings("deepseek_v3"), "architectures": [FAMILIES["deepseek_v3"]]}
    rules = registry.ignored_tensors(registry.model_config(settings))

    def is_ignored(name: str) -> bool:
        return any(rule.matches(name) for rule in rules)

    assert is_ignored("model.layers.2.eh_proj.weight")
    assert is_ignored("model.layers.2.self_attn.kv_b_proj.weight")
    assert not is_ignored("model.layers.1.self_attn.kv_b_proj.weight")
    assert not is_ignored("model.layers.20.mlp.gate.weight")
