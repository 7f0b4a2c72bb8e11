"""Parameters under Hugging Face names, from the user's program, answer as the file does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jengine
from jengine import LLM, SamplingParams
from jengine.errors import CheckpointError, ConfigError
from jengine.weights.folder import open_checkpoint
from jengine.weights.orbax_io import nested
from jengine.weights.resolve import resolve_model

FOLDER = resolve_model("demo")
GREEDY = SamplingParams(temperature=0, max_tokens=8)
PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def arrays() -> dict[str, np.ndarray]:
    return {name: np.asarray(one.read()) for name, one in open_checkpoint(FOLDER).items()}


@pytest.fixture(scope="module")
def config() -> dict[str, Any]:
    return json.loads((FOLDER / "config.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("demo", max_num_seqs=2, max_model_len=128, enforce_eager=True) as llm:
        yield llm


@pytest.fixture(scope="module")
def wanted(llm: LLM) -> list[int]:
    return answer(llm)


def answer(llm: LLM) -> list[int]:
    return llm.generate(PROMPT, GREEDY)[0].outputs[0].token_ids


def zeros(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    return {name: jnp.zeros(one.shape, one.dtype) for name, one in arrays.items()}


class OfAnotherLibrary:
    """An array that is known by DLPack alone."""

    def __init__(self, array: Any) -> None:
        self._array = jnp.asarray(array)

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


def test_a_module_of_them_has_the_files_parameters(
    arrays: dict[str, np.ndarray], config: dict[str, Any]
) -> None:
    tokens = np.array([[5, 8, 11, 200]])
    score = nnx.jit(lambda model, tokens: model.score(tokens))
    ours = score(jengine.load_model("demo"), tokens)
    for given in (arrays, nested(arrays)):
        np.testing.assert_array_equal(score(jengine.from_hf(given, config), tokens), ours)
    wide = jengine.from_hf(arrays, FOLDER, dtype="float32")
    np.testing.assert_allclose(score(wide, tokens), ours, atol=0.2)


def test_the_arrays_dtype_is_kept_where_the_config_names_none(
    arrays: dict[str, np.ndarray], config: dict[str, Any]
) -> None:
    nameless = {key: one for key, one in config.items() if "dtype" not in key}
    model = jengine.from_hf(
        {name: one.astype(np.float16) for name, one in arrays.items()}, nameless
    )
    assert model.config.dtype == "float16"


@pytest.mark.parametrize(
    "form", [dict, nested, lambda flat: {name: OfAnotherLibrary(one) for name, one in flat.items()}]
)
def test_updates(llm: LLM, wanted: list[int], arrays: dict[str, np.ndarray], form: Any) -> None:
    version = llm.update_params(zeros(arrays))
    assert answer(llm) != wanted
    assert llm.update_params(form(arrays)) == version + 1
    assert answer(llm) == wanted


def of_linen(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """The tree of flax.linen modules that are called as the tensors are."""
    found = {}
    for name, one in arrays.items():
        module = name.removesuffix(".weight")
        is_linear = one.ndim == 2 and not module.endswith("embed_tokens")
        kind = "kernel" if is_linear else "embedding" if one.ndim == 2 else "scale"
        found[f"params.{module}.{kind}"] = jnp.asarray(one.T if is_linear else one)
    return nested(found)


def test_updates_by_a_mapping(llm: LLM, wanted: list[int], arrays: dict[str, np.ndarray]) -> None:
    version = llm.update_params(of_linen(zeros(arrays)), mapping="flax")
    assert answer(llm) != wanted
    tree = of_linen(arrays)
    compiled = len(llm.ledger.entries)
    assert llm.update_params(tree, mapping="flax", donate=True) == version + 1
    assert answer(llm) == wanted
    assert len(llm.ledger.entries) == compiled
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(tree))


def test_a_mapping_that_does_not_fit_changes_nothing(
    llm: LLM, wanted: list[int], arrays: dict[str, np.ndarray]
) -> None:
    tree, version = of_linen(arrays), llm.weights_version
    tree["params"]["model"]["norm"]["scale"] = np.zeros(3, np.float32)
    with pytest.raises(CheckpointError, match=r"model.norm.weight' has shape \(3,\), expected"):
        llm.update_params(tree, mapping="flax")
    with pytest.raises(ConfigError, match=r"names of flax.linen or flax.nnx: mapping='flax'"):
        llm.update_params(tree)
    assert (llm.weights_version, answer(llm)) == (version, wanted)


def test_a_tree_of_other_names_is_told_of_mappings(llm: LLM) -> None:
    tree = {"blocks": [{"up": np.zeros((2, 3), np.float32)}]}
    with pytest.raises(ConfigError, match=r"Paths such as 'blocks.0.up' are .*mapping= says how"):
        llm.update_params(tree)
    with pytest.raises(
        CheckpointError, match=r"(?s)none of the names .*such as 'blocks.0.up' are "
    ):
        jengine.from_hf(tree, FOLDER)
    partly = dict(list(llm.params.items())[1:])
    with pytest.raises(ConfigError, match=r"embed.weight: missing$"):
        llm.update_params(partly)


def test_what_is_shown_can_be_given_back(llm: LLM, wanted: list[int]) -> None:
    shown = llm.params
    with pytest.raises(TypeError):
        shown["embed.weight"] = 1  # type: ignore[index]
    llm.update_params(dict(shown))
    assert answer(llm) == wanted


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.norm.weight": None}, "tensors missing: model.norm.weight"),
        ({"model.extra": np.zeros(3, np.float32)}, "no place for: model.extra"),
        ({"model.norm.weight": np.zeros(3, np.float32)}, r"has shape \(3,\), expected"),
        ({"model.norm.weight": "text"}, "is a str, expected an array"),
        ({"model.norm.weight": np.zeros(3, np.int8)}, "is int8, expected one of"),
    ],
)
def test_what_does_not_fit_changes_nothing(
    llm: LLM, wanted: list[int], arrays: dict[str, np.ndarray], change: Any, message: str
) -> None:
    given = {**arrays, **change}
    given = {name: one for name, one in given.items() if one is not None}
    with pytest.raises(CheckpointError, match=message):
        llm.update_params(given)
    assert answer(llm) == wanted


def test_a_model_needs_a_config(arrays: dict[str, np.ndarray]) -> None:
    with pytest.raises(ConfigError, match=r"jengine\.from_hf\(arrays, config\)"):
        LLM(arrays)
    with pytest.raises(ConfigError, match="given no 'architectures'"):
        jengine.from_hf(arrays, {"hidden_size": 8})


def test_parameters_in_place_of_a_folders(arrays: dict[str, np.ndarray], wanted: list[int]) -> None:
    with LLM("demo", params=arrays, max_num_seqs=2, max_model_len=128, enforce_eager=True) as llm:
        assert answer(llm) == wanted
