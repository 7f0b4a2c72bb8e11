"""Parameters in pieces, as trainers and vLLM's `load_weights` hand them over."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jengine
from jengine import LLM, AsyncLLM, SamplingParams
from jengine.errors import CheckpointError, ConfigError, UnsupportedFeature
from jengine.weights.folder import open_checkpoint
from jengine.weights.resolve import resolve_model

FOLDER = resolve_model("demo")
GREEDY = SamplingParams(temperature=0, max_tokens=8)
SETTINGS: dict[str, Any] = {"max_num_seqs": 2, "max_model_len": 128, "enforce_eager": True}
NORM = "model.norm.weight"
Arrays = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def arrays() -> Arrays:
    return {name: np.asarray(one.read()) for name, one in open_checkpoint(FOLDER).items()}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("demo", **SETTINGS) as llm:
        yield llm


@pytest.fixture(scope="module")
def wanted(llm: LLM) -> list[int]:
    return answer(llm)


def answer(llm: LLM) -> list[int]:
    return llm.generate("Once upon a time", GREEDY)[0].outputs[0].token_ids


def one_buffer(arrays: Arrays) -> Iterator[tuple[str, np.ndarray]]:
    """Pairs whose arrays share memory, which the next one overwrites."""
    memory = np.empty(max(one.nbytes for one in arrays.values()), np.uint8)
    for name, one in arrays.items():
        shared = memory[: one.nbytes].view(one.dtype).reshape(one.shape)
        shared[...] = one
        yield name, shared
    memory[:] = 0


def freed(arrays: Arrays) -> Iterator[tuple[str, jax.Array]]:
    """Pairs whose arrays are deleted when the next one is asked for."""
    for name, one in arrays.items():
        array = jnp.array(one)
        yield name, array
        array.delete()


def halves(arrays: Arrays) -> list[Arrays]:
    """One mapping per file of two."""
    items = list(arrays.items())
    return [dict(items[:7]), dict(items[7:])]


FORMS = [one_buffer, freed, halves, lambda arrays: iter(halves(arrays)), dict.items]


@pytest.mark.parametrize("form", FORMS)
def test_updates(llm: LLM, wanted: list[int], arrays: Arrays, form: Any) -> None:
    version = llm.update_params({name: np.zeros_like(one) for name, one in arrays.items()})
    assert answer(llm) != wanted
    assert llm.update_params(form(arrays)) == version + 1
    assert answer(llm) == wanted


@pytest.mark.parametrize("form", [list, iter])
def test_pairs_of_the_engines_own_paths(llm: LLM, wanted: list[int], form: Any) -> None:
    version, kept = llm.weights_version, list(llm.params.items())
    assert llm.update_params(form(kept)) == version + 1
    assert answer(llm) == wanted
    wrong = [(path.replace("embed", "other"), one) for path, one in kept]
    with pytest.raises(ConfigError, match=r"other.weight \(piece \d+\): not a parameter"):
        llm.update_params(form(wrong))
    wrong = [(path, one[:3] if path == "norm.weight" else one) for path, one in kept]
    with pytest.raises(ConfigError, match=r"norm.weight \(piece \d+\): given shape \(3,\)"):
        llm.update_params(form(wrong))
    assert answer(llm) == wanted


def test_a_module_of_them(arrays: Arrays) -> None:
    tokens = np.array([[5, 8, 11, 200]])
    ours = jengine.load_model("demo").score(tokens)
    for form in FORMS:
        np.testing.assert_array_equal(jengine.from_hf(form(arrays), FOLDER).score(tokens), ours)


def test_in_place_of_a_folders(arrays: Arrays, wanted: list[int]) -> None:
    zeros = {name: np.zeros_like(one) for name, one in arrays.items()}
    with LLM("demo", params=one_buffer(zeros), **SETTINGS) as llm:
        assert answer(llm) != wanted
    with LLM("demo", params=one_buffer(arrays), **SETTINGS) as llm:
        assert answer(llm) == wanted


def test_an_engine_that_is_awaited(arrays: Arrays, wanted: list[int]) -> None:
    async def run() -> list[int]:
        async with AsyncLLM("demo", **SETTINGS) as llm:
            await llm.update_params((name, one * 0) for name, one in arrays.items())
            await llm.update_params(freed(arrays))
            outputs = [one async for one in llm.generate("Once upon a time", GREEDY)]
            return outputs[-1].outputs[0].token_ids

    assert asyncio.run(run()) == wanted


def test_an_iterator_of_another_librarys_paths(llm: LLM, wanted: list[int], arrays: Arrays) -> None:
    version = llm.weights_version
    pairs = ((f"own.{name}", one) for name, one in arrays.items())
    assert llm.update_params(pairs, mapping={"own.{path:path}": "{path}"}) == version + 1
    assert answer(llm) == wanted
    with pytest.raises(CheckpointError, match=r"no rule matches .*\n  0\.model.embed"):
        llm.update_params([arrays], mapping={"own.{path:path}": "{path}"})  # a list is a pytree


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        (lambda a: [(NORM, a[NORM]), *a.items()],
         r"the given arrays: 'model.norm.weight' is in piece 1 and in piece \d+; expected one"),
        (lambda a: [*halves(a), {NORM: a[NORM]}],
         r"'model.norm.weight' is in piece \d and in piece 3; expected one"),
        (lambda a: [one for one in a.items() if one[0] != NORM], f"tensors missing: {NORM}"),
        (lambda a: [*halves(a), {"model.extra": a[NORM]}],
         r"no place for: model.extra \(piece 3\)"),
        (lambda a: [(NORM, a[NORM][:3]), *(one for one in a.items() if one[0] != NORM)],
         r"'model.norm.weight' has shape \(3,\), expected .* \(piece 1\)"),
        (lambda a: [(NORM, "text"), *(one for one in a.items() if one[0] != NORM)],
         "piece 1: 'model.norm.weight' is a str, expected an array"),
        (lambda a: [(NORM, a[NORM].astype(np.int8)), *(o for o in a.items() if o[0] != NORM)],
         "piece 1: 'model.norm.weight' is int8, expected one of"),
        (lambda a: [*halves(a), NORM], r"piece 3 is a str, expected a pair \(name, array\) or a"),
        (lambda a: [], "has none, or was read before"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", [list, iter])
def test_what_does_not_fit_changes_nothing(
    llm: LLM, wanted: list[int], arrays: Arrays, pieces: Any, message: str, form: Any
) -> None:
    version = llm.weights_version
    given: Iterable[Any] = form(pieces(arrays))
    with pytest.raises(CheckpointError, match=message):
        llm.update_params(given)
    assert (llm.weights_version, answer(llm)) == (version, wanted)


def test_an_error_of_the_iterator_comes_through(
    llm: LLM, wanted: list[int], arrays: Arrays
) -> None:
    def broken() -> Iterator[tuple[str, np.ndarray]]:
        for name, one in list(arrays.items())[:5]:
            yield name, one * 0
        raise ConnectionError("the trainer is gone")

    version = llm.weights_version
    with pytest.raises(ConnectionError, match="the trainer is gone"):
        llm.update_params(broken())
    assert (llm.weights_version, answer(llm)) == (version, wanted)


def test_an_iterator_runs_under_its_callers_settings(
    llm: LLM, wanted: list[int], arrays: Arrays
) -> None:
    seen = []

    def pairs() -> Iterator[tuple[str, np.ndarray]]:
        for name, one in arrays.items():
            seen.append(jax.config.jax_enable_x64)
            yield name, one

    with jax.enable_x64(True):
        llm.update_params(pairs())
        jengine.from_hf(pairs(), FOLDER)
    assert all(seen) and len(seen) == 2 * len(arrays)
    assert answer(llm) == wanted


def test_an_iterators_arrays_are_not_donated(llm: LLM, arrays: Arrays) -> None:
    with pytest.raises(ConfigError, match="donate=True: a generator frees its arrays itself"):
        llm.update_params(freed(arrays), donate=True)
    files = [{name: jnp.array(one) for name, one in half.items()} for half in halves(arrays)]
    llm.update_params(files, donate=True)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(files))


def test_arrays_of_several_processes_need_a_mapping(
    llm: LLM, arrays: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {name: jnp.array(one) for name, one in arrays.items()}
    monkeypatch.setattr(type(given[NORM]), "is_fully_addressable", False)
    with pytest.raises(UnsupportedFeature, match=r"piece 1: .* is spread over several processes"):
        llm.update_params(given.items())
