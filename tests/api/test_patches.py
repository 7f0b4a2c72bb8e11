"""Changes whose arrays are operands: patches, steering, grids; and hidden states to logits."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

import jengine
from jengine import Patch, SamplingParams, Steer
from jengine.errors import RequestError
from jengine.runner.variants.tap_sets import SETS_KEPT, Change, Changes, TapSets
from tests.api.engines import random_prompts, tiny_engine

WIDTH = 32
OF_THE_NOTEBOOK = np.ones(WIDTH, np.float32)  # a variable of the module, as of a notebook's cell
ONE = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
PROMPT, OTHER = random_prompts(21, 21, seed=5)


@pytest.fixture(scope="module")
def full_engine(full_folder: Path) -> jengine.LLM:
    return tiny_engine(full_folder, "greedy")


def captured(llm: jengine.LLM, prompt: list[int], **options: Any) -> dict[str, np.ndarray]:
    """What one prompt captures at the layers' outputs and the last norm."""
    (output,) = llm.generate([prompt], ONE, capture=["layers.*.output", "norm"], **options)
    assert output.captured is not None
    return output.captured


def compiled_by(llm: jengine.LLM, call: Callable[[], object]) -> int:
    """How many programs a call compiles."""
    before = set(llm.ledger.entries)  # programs of sets that are forgotten leave it
    call()
    return len(set(llm.ledger.entries) - before)


def blended(values: Array, positions: Array, arrays: dict[str, Array]) -> Array:
    return jnp.where((positions == arrays["at"])[:, None], arrays["to"][None, :], values)


class Unhashable:
    """A module of arrays, such as Equinox's."""

    __hash__ = None  # type: ignore[assignment]

    def __call__(self, values: Array) -> Array:
        return values


def test_a_patch_compiles_once_per_point(llm: jengine.LLM) -> None:
    source, own = captured(llm, OTHER), captured(llm, PROMPT)

    def patched(places: list[int]) -> dict[str, np.ndarray]:
        patch = Patch(source["layers.0.output"][places], places)
        return captured(llm, PROMPT, intervene={"layers.0.output": patch})

    assert compiled_by(llm, lambda: patched([3])) == 1
    assert compiled_by(llm, lambda: patched([7])) == 0
    assert compiled_by(llm, lambda: patched([2, 9, 20])) == 1  # four places are operands now
    assert compiled_by(llm, lambda: patched([0, 1, 2, 4])) == 0
    found = patched([2, 9, 20])
    expected = own["layers.0.output"].copy()
    expected[[2, 9, 20]] = source["layers.0.output"][[2, 9, 20]]
    np.testing.assert_array_equal(found["layers.0.output"], expected)
    np.testing.assert_array_equal(found["norm"][:2], own["norm"][:2])
    assert not np.allclose(found["norm"][2:], own["norm"][2:])


def test_a_patch_of_everything_makes_the_other_prompt(llm: jengine.LLM) -> None:
    source = captured(llm, OTHER)
    patch = Patch(source["layers.0.output"], range(len(PROMPT)))
    found = captured(llm, PROMPT, intervene={"layers.0.output": patch})
    np.testing.assert_allclose(found["norm"], source["norm"], atol=1e-5)


def test_other_vectors_and_scales_steer_by_the_same_program(llm: jengine.LLM) -> None:
    own = captured(llm, PROMPT)["layers.1.output"]
    vector = np.linspace(-1, 1, WIDTH)
    steer = partial(captured, llm, PROMPT)

    def steered(scale: float) -> np.ndarray:
        found = steer(intervene={"layers.1.output": Steer(vector, scale)})
        return found["layers.1.output"]

    assert compiled_by(llm, lambda: steered(1.0)) == 1
    assert compiled_by(llm, lambda: steered(2.0)) == 0
    np.testing.assert_allclose(steered(-3.0), own - 3 * vector, atol=1e-5)


def test_arrays_of_a_function_are_operands(llm: jengine.LLM) -> None:
    own = captured(llm, PROMPT)["layers.0.output"]

    def changed(at: int, to: Any) -> np.ndarray:
        arrays = {"at": at, "to": to}
        found = captured(llm, PROMPT, intervene={"layers.0.output": (blended, arrays)})
        return found["layers.0.output"]

    to = np.zeros(WIDTH, np.float32)
    assert compiled_by(llm, lambda: changed(4, to)) == 1
    to[:] = 2.0  # a changed array is seen
    assert compiled_by(llm, lambda: changed(4, to)) == 0
    expected = own.copy()
    expected[5] = 2.0
    np.testing.assert_array_equal(changed(5, jnp.asarray(to)), expected)
    other = {"layers.0.output": (lambda x, scale: scale * x, 0.5)}
    np.testing.assert_allclose(
        captured(llm, PROMPT, intervene=other)["layers.0.output"], own * 0.5, atol=1e-6
    )


def test_a_function_is_traced_for_new_shapes_alone(llm: jengine.LLM) -> None:
    calls: list[tuple[int, ...]] = []

    def traced(values: Array, arrays: Array) -> Array:
        calls.append(arrays.shape)
        return values + arrays[None, :]

    def steered(arrays: Any) -> None:
        captured(llm, PROMPT, intervene={"layers.0.output": (traced, arrays)})

    steered(np.zeros(WIDTH, np.float32))
    known = len(calls)
    steered(np.ones(WIDTH, np.float32))
    assert len(calls) == known > 0
    steered(np.ones(1, np.float32))
    assert len(calls) > known


def test_a_function_that_holds_arrays_is_warned_of_once(llm: jengine.LLM) -> None:
    held = np.float32([1.0] * WIDTH)
    by_closure = {"layers.0.output": lambda x: x + held[None, :]}
    by_partial = {"layers.0.mlp": partial(lambda held, x: x + held[None, :], jnp.asarray(held))}
    by_module = {"layers.1.mlp": lambda x: x + OF_THE_NOTEBOOK[None, :]}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for _ in range(2):
            captured(llm, PROMPT, intervene=by_closure)
        captured(llm, PROMPT, intervene=by_partial)
        captured(llm, PROMPT, intervene=by_module)
        captured(llm, PROMPT, intervene={"norm": lambda x: 2 * x})
    told = [str(one.message) for one in seen if "holds arrays" in str(one.message)]
    assert [one.split(":")[0] for one in told] == [
        "intervene['layers.0.output']", "intervene['layers.0.mlp']", "intervene['layers.1.mlp']",
    ]  # fmt: skip


def test_arrays_in_use_are_not_replaced() -> None:
    sets = TapSets(lambda taps: None)

    def scaled(value: float) -> Changes:
        change = Change("norm", blended, jax.tree.structure(0), (0,))
        return Changes((change,), (jnp.float32(value),))

    one = scaled(1.0)
    with sets.opened([], one) as first, sets.opened([], one) as same:
        assert same == first
        with sets.opened([], scaled(2.0)) as second:
            assert second != first
            held = [taps.operands.given for taps in sets.of(np.array([first, second]))]
            assert held[0] == one.arrays and float(held[1][0]) == 2.0
    with sets.opened([], scaled(3.0)) as third:
        assert third in (first, second)


def test_variants_have_numbers_of_their_own() -> None:
    forgotten: list[int] = []
    sets = TapSets(lambda taps: forgotten.append(taps.number))
    change = Change("norm", blended, jax.tree.structure(0), (0,))
    four = Changes((change,), (jnp.zeros(4),), 4)
    with sets.opened([], four) as first, sets.opened(["embed"]) as after:
        assert after == first + 4
        found = sets.of(np.array([0, first + 3, first, after, first + 1]))
        assert [taps.number for taps in found] == [first, after]
    for _ in range(SETS_KEPT + 1):
        with sets.opened([], Changes((change._replace(function=lambda x, y: x),), (jnp.zeros(2),))):
            pass
    assert first in forgotten and after in forgotten
    assert not sets.of(np.zeros(2, np.int32))


def test_a_grid_is_its_patches_in_one_program(llm: jengine.LLM) -> None:
    source = captured(llm, OTHER)
    values = {name: source[name] for name in ("layers.0.output", "layers.1.output")}
    grids: list[jengine.PatchGrid] = []
    assert compiled_by(llm, lambda: grids.append(llm.patch_grid(PROMPT, values))) == 1
    (grid,) = grids
    assert grid.points == list(values) and grid.positions == list(range(21))
    for point, place in ((0, 0), (1, 4), (0, 20)):
        name = grid.points[point]
        patch = {name: Patch(source[name][place], place)}
        expected = captured(llm, PROMPT, intervene=patch)["norm"][-1]
        np.testing.assert_allclose(grid.hidden[point, place], expected, atol=1e-5)
    np.testing.assert_allclose(grid.hidden[1, -1], source["norm"][-1], atol=1e-5)
    (shorter,) = random_prompts(18, seed=8)

    def again() -> object:
        return llm.patch_grid(shorter, {name: 2 * of for name, of in values.items()})

    assert compiled_by(llm, again) == 0


def test_a_grid_beside_other_requests_changes_none(llm: jengine.LLM) -> None:
    plain = [output.outputs[0].token_ids for output in llm.generate([PROMPT, OTHER], ONE)]
    source = captured(llm, OTHER)
    llm.enqueue([PROMPT, OTHER], ONE)  # these run in the same steps
    llm.patch_grid(PROMPT, {"layers.0.output": source["layers.0.output"]}, [1, 5])
    assert [output.outputs[0].token_ids for output in llm.wait_for_completion()] == plain


def test_unembedding_makes_the_logits_that_tokens_are_drawn_from(llm: jengine.LLM) -> None:
    (output,) = llm.generate([PROMPT], ONE, capture=["layers.1.output", "norm"])
    assert output.captured is not None
    logits = llm.unembed(output.captured["norm"])
    assert logits.shape == (21, llm.engine.model.vocab_size) and logits.dtype == jnp.float32
    assert output.outputs[0].token_ids == [int(logits[-1].argmax())]
    lens = llm.unembed(output.captured["layers.1.output"].reshape(3, 7, WIDTH), norm=True)
    np.testing.assert_allclose(lens.reshape(21, -1), logits, atol=1e-5)
    np.testing.assert_allclose(llm.unembed(output.captured["norm"][-1]), logits[-1], atol=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda llm: Patch(np.zeros(WIDTH), -1), "tokens of the prompt, counted from 0"),
        (lambda llm: Patch(np.zeros(WIDTH), [1, 1]), "different tokens"),
        (lambda llm: Patch(np.zeros((2, WIDTH)), [1]), "shape .2, 32.; expected .1, width."),
        (lambda llm: Steer(np.zeros((2, WIDTH))), r"expected \(width,\) and one number"),
        (
            lambda llm: captured(llm, PROMPT, intervene={"norm": Steer(np.zeros(5))}),
            "have 5 numbers; this model's have 32",
        ),
        (
            lambda llm: captured(llm, PROMPT, intervene={"norm": (blended, {"to": "words"})}),
            "str among the arrays",
        ),
        (lambda llm: captured(llm, PROMPT, intervene={"norm": Unhashable()}), "has no hash"),
        (lambda llm: llm.patch_grid(PROMPT, {}), "that is not empty"),
        (lambda llm: llm.patch_grid(PROMPT, {"mlp": np.zeros((21, WIDTH))}), "no tap point 'mlp'"),
        (lambda llm: llm.patch_grid(PROMPT, {"norm": np.zeros((9, WIDTH))}), "21 tokens or more"),
        (
            lambda llm: llm.patch_grid(PROMPT, {"norm": np.zeros((21, WIDTH))}, [21]),
            "from 0 to 20",
        ),
        (lambda llm: llm.unembed(np.zeros((2, 5))), "expected floats .*32"),
        (lambda llm: llm.unembed(np.zeros(WIDTH, int)), "type int32"),
    ],
)
def test_bad_input(llm: jengine.LLM, call: Callable[[jengine.LLM], object], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        call(llm)
