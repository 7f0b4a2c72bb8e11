"""Functions of requests whose callbacks raise: their own requests end, the engine goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from jax.experimental import io_callback

import jengine
from jengine import SamplingParams
from jengine.sampling.callbacks import guarded, has_callbacks
from tests.marks import slow

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
PROMPTS = [[5, 9, 40], [7, 8]]
LONG = [3 + n % 90 for n in range(300)]  # runs in two chunks


def fail(*_: Any) -> Any:
    raise ValueError("my own mistake")


def in_debug(x: Array) -> Array:
    jax.debug.callback(fail, x[..., 0])
    return x


def in_pure(x: Array) -> Array:
    return x + jax.pure_callback(fail, x, x, vmap_method="broadcast_all")


def in_io(x: Array) -> Array:
    return io_callback(fail, x, x)


def deep(x: Array) -> Array:
    def body(carry: Array, _: Array) -> tuple[Array, None]:
        return jax.lax.cond(carry.sum() < jnp.inf, jax.jit(in_debug), lambda x: x, carry), None

    return jax.lax.scan(body, x, jnp.arange(2))[0]


def tokens(output: jengine.RequestOutput) -> list[int]:
    return output.outputs[0].token_ids


def check_failed(output: jengine.RequestOutput) -> None:
    assert output.error is not None and "raised ValueError: my own mistake" in output.error
    assert output.outputs[0].finish_reason == "error" and output.refused


@pytest.mark.parametrize("function", [in_debug, *slow(in_pure, in_io, deep)])
def test_a_callback_in_an_intervention_ends_its_requests(
    llm: jengine.LLM, function: Callable[..., Any]
) -> None:
    usual = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    other = llm.stream(PROMPTS, GREEDY)
    next(other)  # runs beside them
    for output in llm.generate(
        PROMPTS, GREEDY, use_tqdm=False, intervene={"layers.0.mlp": function}
    ):
        check_failed(output)
    found = {tuple(one.prompt_token_ids): tokens(one) for one in other if one.finished}
    assert found == {tuple(one.prompt_token_ids): tokens(one) for one in usual}


@pytest.mark.slow
def test_a_print_whose_format_fits_no_array(
    llm: jengine.LLM, capfd: pytest.CaptureFixture[str]
) -> None:
    def show(x: Array) -> Array:
        jax.debug.print("first {one} of {name}", one=x[0, 0] * 0, name="it")
        return x

    def wrong(x: Array) -> Array:
        jax.debug.print("{one:d}", one=x[0, 0])
        return x

    for function, works in ((show, True), (wrong, False), (show, True)):
        (output,) = llm.generate(
            PROMPTS[0], GREEDY, use_tqdm=False, intervene={"layers.0.mlp": function}
        )
        assert (output.error is None) == works
    assert "first 0.0 of it" in capfd.readouterr().out


@pytest.mark.parametrize("function", [in_debug, *slow(in_pure)])
def test_a_callback_in_a_logits_processor_ends_its_requests(
    llm: jengine.LLM, function: Callable[..., Any]
) -> None:
    usual = llm.generate(PROMPTS[0], GREEDY, use_tqdm=False)
    own = GREEDY.clone(logits_processors=[function])
    good, failed = llm.generate([PROMPTS[0]] * 2, [GREEDY, own], use_tqdm=False)
    check_failed(failed)
    assert tokens(good) == tokens(usual[0]) and good.error is None


def test_a_failure_in_a_chunk_that_samples_nothing_is_told_later(llm: jengine.LLM) -> None:
    calls = []

    def once(first: Any) -> None:
        calls.append(first)
        if len(calls) == 1:
            fail()

    def look(x: Array, positions: Array) -> Array:
        jax.debug.callback(once, positions[0])
        return x

    (output,) = llm.generate(LONG, GREEDY, use_tqdm=False, intervene={"norm": look})
    check_failed(output)
    assert len(calls) > 1 and tokens(output) == []
    # The same functions may succeed for others.
    (output,) = llm.generate(LONG, GREEDY, use_tqdm=False, intervene={"norm": look})
    assert output.error is None and len(tokens(output)) == 6


@pytest.mark.slow
def test_a_callback_that_succeeds_changes_nothing(llm: jengine.LLM) -> None:
    seen: list[float] = []

    def look(x: Array) -> Array:
        jax.debug.callback(lambda y: seen.append(float(y)), x[0, 0])
        return x * jax.pure_callback(lambda y: np.asarray(y) * 0 + 1, x, x)

    usual = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    found = llm.generate(PROMPTS, GREEDY, use_tqdm=False, intervene={"layers.0.mlp": look})
    assert list(map(tokens, found)) == list(map(tokens, usual))
    assert seen and np.isfinite(seen).all()


def test_what_a_guard_returns_has_the_shape_that_was_wanted() -> None:
    errors: list[BaseException] = []

    def two(x: Array, y: Array) -> Array:
        wanted = jax.ShapeDtypeStruct((3,), jnp.float32)
        return jax.pure_callback(fail, wanted, x, y, vmap_method="expand_dims") + x

    call = guarded(two, errors.append)
    np.testing.assert_array_equal(call(jnp.ones(3), jnp.ones(2)), np.ones(3))
    batched = jax.jit(jax.vmap(call, in_axes=(0, None)))(jnp.ones((4, 3)), jnp.ones(2))
    np.testing.assert_array_equal(batched, np.ones((4, 3)))
    assert list(map(str, errors)) == ["my own mistake"] * 2
    assert not has_callbacks(jax.make_jaxpr(jax.jit(jnp.sin))(1.0))
