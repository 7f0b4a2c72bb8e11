"""Capture and intervene: what passes a tap point, and what functions there change, per request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

import jengine
from jengine import SamplingParams
from jengine.errors import RequestError, UnexpectedCompile
from jengine.models.context import whole_sequences
from jengine.models.tap_points import tap_points
from jengine.runner.step.step_taps import takes
from jengine.runner.variants import tap_sets
from jengine.runner.variants.tap_sets import SETS_KEPT, Change, Changes, TapSets
from jengine.weights.abstract import with_values
from tests.api.engines import answers, random_prompts, rebuilt, tiny_engine
from tests.api.few_requests import PROMPTS
from tests.models.plain_logits import lengthened

GREEDY = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)


@pytest.fixture(scope="module")
def full_engine(full_folder: Path) -> jengine.LLM:
    """Greedy steps alone: each set of taps is compiled into programs of its own."""
    return tiny_engine(full_folder, "greedy")


@pytest.fixture(scope="module")
def window_engine(window_folder: Path) -> jengine.LLM:
    return tiny_engine(window_folder, "greedy")


def double(values: Array) -> Array:
    return 2.0 * values


def late_shift(values: Array, positions: Array) -> Array:
    """Changes only what stands at position 20 or later."""
    return jnp.where((positions >= 20)[:, None], values + 0.5, values)


def reference(
    llm: jengine.LLM,
    tokens: list[int],
    change: Callable[[str, Array], Array] = lambda name, value: value,
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """What passes every tap point, and the logits, from one pass over whole sequences."""
    engine = llm.engine
    model: Any = with_values(engine.declared, engine.loaded.parameters())
    seen: dict[str, np.ndarray] = {}

    def tap(name: str, value: Array) -> Array:
        value = change(name, value)
        seen[name] = np.asarray(value[0, : len(tokens)])
        return value

    ids = lengthened(tokens, 192)  # one length for all prompts
    hidden = model(ids, whole_sequences(ids.shape, tap))
    return seen, np.asarray(model.logits(hidden)[0, : len(tokens)])


def ran(output: jengine.RequestOutput) -> list[int]:
    """The tokens whose hidden states were computed: all but the last of the answer."""
    return [*output.prompt_token_ids, *output.outputs[0].token_ids[:-1]]


def assert_captured(
    llm: jengine.LLM, output: jengine.RequestOutput, names: list[str], **options: Any
) -> None:
    assert output.captured is not None
    assert list(output.captured) == names
    expected, _ = reference(llm, ran(output), **options)
    for name in names:
        np.testing.assert_allclose(output.captured[name], expected[name], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "either_engine",
    ["full_engine", pytest.param("window_engine", marks=pytest.mark.slow)],
    indirect=True,
)
def test_captured_values_are_those_of_one_pass(either_engine: jengine.LLM) -> None:
    names = [point.name for point in either_engine.tap_points]
    plain = answers(either_engine.generate(PROMPTS, GREEDY))
    outputs = either_engine.generate(PROMPTS, GREEDY, capture=["embed", "layers.*", "norm"])
    assert answers(outputs) == plain
    for output in outputs:
        assert_captured(either_engine, output, names)


@pytest.mark.slow
def test_chunks_and_preemption_leave_every_token_once(llm: jengine.LLM) -> None:
    with rebuilt(llm, num_blocks=16, max_num_batched_tokens=64) as small:
        outputs = small.generate(PROMPTS, GREEDY, capture="layers.0.output")
        assert small.stats().preemptions > 0
    for output in outputs:
        assert_captured(llm, output, ["layers.0.output"])


@pytest.mark.slow
def test_each_answer_has_its_own(llm: jengine.LLM) -> None:
    params = SamplingParams(temperature=1.0, seed=3, n=2, max_tokens=5, ignore_eos=True)
    output = llm.generate([PROMPTS[1]], params, capture="norm")[0]
    one, two = output.outputs
    assert one.token_ids != two.token_ids
    assert one.captured is not None and two.captured is not None
    assert one.captured["norm"].shape == two.captured["norm"].shape == (17 + 4, 32)
    assert np.array_equal(one.captured["norm"][:17], two.captured["norm"][:17])
    assert not np.allclose(one.captured["norm"][17:], two.captured["norm"][17:])


@pytest.mark.slow
def test_a_stop_string_ends_what_is_captured(text_llm: jengine.LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    whole = text_llm.generate("hello", params)[0].outputs[0]
    stop = whole.text[8:10]
    params = params.clone(stop=[stop])
    output = text_llm.generate("hello", params, capture="norm")[0]
    assert output.outputs[0].finish_reason == "stop"
    assert output.captured is not None
    assert len(output.captured["norm"]) == len(ran(output))


def test_one_request_is_changed_and_its_neighbours_are_not(llm: jengine.LLM) -> None:
    plain = answers(llm.generate(PROMPTS, GREEDY))
    llm.enqueue(PROMPTS, GREEDY)  # these run in the same steps as the changed ones
    changed = llm.generate(PROMPTS, GREEDY, intervene={"layers.0.mlp": late_shift})
    assert answers(llm.wait_for_completion()) == plain
    # The shift begins at position 20, so the shortest answer is untouched and others are not.
    assert answers(changed)[0] == plain[0]
    assert answers(changed)[2:] != plain[2:]

    def change(name: str, value: Array) -> Array:
        positions = jnp.arange(value.shape[1])
        return late_shift(value[0], positions)[None] if name == "layers.0.mlp" else value

    for output in changed:
        _, logits = reference(llm, ran(output), change)
        expected = logits[len(output.prompt_token_ids) - 1 :].argmax(-1)
        assert output.outputs[0].token_ids == expected.tolist()


@pytest.mark.slow
def test_what_is_changed_is_captured_changed(llm: jengine.LLM) -> None:
    output = llm.generate([PROMPTS[1]], GREEDY, capture="embed", intervene={"embed": double})[0]
    assert_captured(
        llm, output, ["embed"], change=lambda name, x: double(x) if name == "embed" else x
    )


def test_changed_keys_and_values_are_never_found_by_others(llm: jengine.LLM) -> None:
    prompt = random_prompts(96, seed=11)
    changed = answers(llm.generate(prompt, GREEDY, intervene={"layers.0.output": double}))
    before = llm.stats().prefix_hits
    plain = answers(llm.generate(prompt, GREEDY))
    assert llm.stats().prefix_hits == before
    assert plain != changed
    assert answers(llm.generate(prompt, GREEDY)) == plain  # from the cache now
    assert llm.stats().prefix_hits > before
    assert answers(llm.generate(prompt, GREEDY, intervene={"layers.0.output": double})) == changed


@pytest.mark.slow
def test_the_same_function_is_compiled_once_and_old_ones_are_forgotten(
    llm: jengine.LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tap_sets, "SETS_KEPT", 2)

    def programs() -> int:
        return len(llm.ledger.entries)

    llm.generate([PROMPTS[1]], GREEDY, intervene={"norm": double})
    once = programs()
    llm.generate([PROMPTS[1]], GREEDY, intervene={"norm": double})
    assert programs() == once
    short = GREEDY.clone(max_tokens=1)
    for scale in range(3):
        llm.generate([PROMPTS[1]], short, intervene={"norm": lambda x, by=scale: x + by})
    tapped = {one.number for _, features in llm.ledger.entries for one in features.taps}
    assert len(tapped) == 2


def test_sets_in_use_are_never_forgotten() -> None:
    forgotten: list[int] = []
    sets = TapSets(lambda taps: forgotten.append(taps.number))
    with sets.opened(["embed"]) as first:
        for _ in range(SETS_KEPT + 3):
            with sets.opened([], Changes((Change("norm", lambda x: x),))):
                pass
        assert first not in forgotten and len(forgotten) == 4
        assert [one.number for one in sets.of(np.array([0, first, first]))] == [first]
    with sets.opened([]) as none:
        assert none == 0
    assert sets.of(np.zeros(3, np.int32)) == ()


def test_arguments_that_a_function_must_be_given() -> None:
    assert takes(double) == 1
    assert takes(late_shift) == 2
    assert takes(lambda x, by=3: x) == 1
    assert takes(lambda *values: values[0]) == 1


@pytest.mark.slow
def test_deterministic_mode_captures_the_same_bits_in_any_batch(full_folder: Any) -> None:
    with jengine.LLM(
        full_folder, skip_tokenizer_init=True, enforce_eager=True, deterministic=True,
        max_model_len=192, max_num_seqs=8,
    ) as llm:  # fmt: skip
        points = ["layers.1.attention", "norm"]
        together = llm.generate(PROMPTS[:3], GREEDY, capture=points)
        for prompt, output in zip(PROMPTS, together, strict=False):
            assert_captured(llm, output, points)
            (alone,) = llm.generate([prompt], GREEDY, capture=points)
            assert alone.captured is not None and output.captured is not None
            for point in points:
                np.testing.assert_array_equal(alone.captured[point], output.captured[point])


def test_tap_points_are_described(llm: jengine.LLM) -> None:
    points = tap_points(llm.engine.model)
    layers = len(llm.engine.model.layers)
    assert [point.name for point in points][:3] == ["embed", "layers.0.attention", "layers.0.mlp"]
    assert len(points) == 2 + 3 * layers
    assert all(point.meaning for point in points)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capture": "layers.99.output"}, "no tap point 'layers.99.output'.*N from 0 to"),
        ({"capture": ["layers.0.outptu"]}, "Did you mean 'layers.0.output'"),
        ({"capture": 3}, "capture=3: expected tap names"),
        ({"capture": [3]}, "expected tap names"),
        ({"intervene": double}, "expected a dict"),
        ({"intervene": {"nrom": double}}, "Did you mean 'norm'"),
        ({"intervene": {"norm": 2.0}}, "is a float; expected a function"),
        ({"intervene": {"norm": lambda x: x[:1]}}, "into .1, 32.; expected the same shape"),
        (
            {"intervene": {"norm": lambda x: float(x[0, 0])}},
            "pure JAX .*Concretization",
        ),
        ({"intervene": {"norm": lambda x, y, z: x}}, "cannot be compiled .*TypeError"),
    ],
)
def test_bad_input(llm: jengine.LLM, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        llm.generate([PROMPTS[0]], GREEDY, **options)
    assert len(llm.generate([PROMPTS[0]], GREEDY)) == 1


@pytest.mark.slow
def test_values_that_are_not_finite_end_that_request_alone(llm: jengine.LLM) -> None:
    broken = llm.generate(
        [PROMPTS[1]], GREEDY, capture="norm", intervene={"layers.0.output": lambda x: x * jnp.nan}
    )[0]
    assert broken.outputs[0].finish_reason == "error"
    assert broken.captured is not None and np.isnan(broken.captured["norm"]).all()
    assert answers(llm.generate([PROMPTS[1]], GREEDY))[0][0]


def test_strict_mode_refuses_and_goes_on(full_folder: Any) -> None:
    with tiny_engine(full_folder, "greedy", strict=True, enforce_eager=False) as strict:
        with pytest.raises(UnexpectedCompile, match="capture, intervene"):
            strict.generate([PROMPTS[0]], GREEDY, capture="norm")
        assert len(strict.generate([PROMPTS[0]], GREEDY)) == 1
