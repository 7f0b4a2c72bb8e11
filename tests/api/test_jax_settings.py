"""What a program sets in JAX for its own code reaches no engine: answers stay the same.

Settings are made before the engine starts or afterwards, for a thread or for the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import AxisType, Mesh
from transformers import Qwen3Config, Qwen3Model

from jengine import LLM, SamplingParams
from sharding.jax_settings import OWN, engine_context, foreign_settings
from tests.api.engines import tiny_engine

pytestmark = pytest.mark.filterwarnings("ignore:.with mesh:")
Setting = Callable[[], AbstractContextManager[Any]]
PROMPTS = [[5, 6, 7, 8], [11, 12, 13] * 7]
GREEDY = SamplingParams(temperature=0, max_tokens=4, logprobs=1)
SAMPLED = SamplingParams(temperature=1, seed=3, max_tokens=4)


def mesh(*types: AxisType) -> Setting:
    names = ("data", "model")[: len(types)]
    return lambda: jax.set_mesh(jax.make_mesh((1,) * len(types), names, axis_types=types))


FOR_A_THREAD: dict[str, Setting] = {
    "x64": partial(jax.enable_x64, True),
    "no jit": partial(jax.disable_jit, True),
    "explicit mesh": lambda: jax.set_mesh(jax.make_mesh((1,), ("data",))),
    "automatic mesh": mesh(AxisType.Auto),
    "two axes": mesh(AxisType.Explicit, AxisType.Auto),
    "old mesh": lambda: Mesh(np.array(jax.devices()[:1]), ("data",)),
    "matmul precision": partial(jax.default_matmul_precision, "highest"),
    "promotion of types": partial(jax.numpy_dtype_promotion, "strict"),
    "promotion of ranks": partial(jax.numpy_rank_promotion, "raise"),
    "keys": partial(jax.default_prng_impl, "rbg"),
    "typed keys": partial(jax.enable_custom_prng, True),
    "no old keys": partial(jax.legacy_prng_key, "error"),
    "threefry": partial(jax.threefry_partitionable, False),
    "reuse of keys": partial(jax.debug_key_reuse, True),
    "device": lambda: jax.default_device(jax.devices()[-1]),
    "transfers": partial(jax.transfer_guard, "disallow"),
    "explicit transfers": partial(jax.transfer_guard, "disallow_explicit"),
    "NaNs": partial(jax.debug_nans, True),
    "infinities": partial(jax.debug_infs, True),
    "leaks": partial(jax.check_tracer_leaks, True),
    "no tracing": partial(jax.no_tracing, True),
}
FOR_THE_PROCESS: dict[str, dict[str, Any]] = {
    "x64": {"jax_enable_x64": True},
    "no jit": {"jax_disable_jit": True},
    "matmul precision": {"jax_default_matmul_precision": "highest"},
    "promotion of types": {"jax_numpy_dtype_promotion": "strict"},
    "keys": {"jax_default_prng_impl": "rbg", "jax_threefry_partitionable": False},
    "seeds": {"jax_random_seed_offset": 7},
    "transfers": {"jax_transfer_guard": "disallow"},
    "NaNs": {"jax_debug_nans": True, "jax_debug_infs": True},
    "static indices": {"jax_check_static_indices": True},
    "64-bit types": {"jax_explicit_x64_dtypes": "allow"},
    "errors": {"jax_error_checking_behavior_nan": "raise"},
}
# With these JAX does nothing at all for the program that set them.
IDLE = {"no tracing", "explicit transfers"}


@contextmanager
def for_the_process(values: dict[str, Any]) -> Iterator[None]:
    before = {name: jax.config.values[name] for name in values}
    if "jax_transfer_guard" in before:
        before["jax_transfer_guard"] = "allow"
    try:
        for name, value in values.items():
            jax.config.update(name, value)
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


@contextmanager
def together(settings: list[AbstractContextManager[Any]]) -> Iterator[None]:
    with ExitStack() as stack:
        for one in settings:
            stack.enter_context(one)
        yield


def double(x: jax.Array) -> jax.Array:
    return x * 2.0


def answers(llm: LLM) -> list[Any]:
    """Tokens and numbers of everything that makes programs and moves arrays."""
    found = []
    for params in (GREEDY, SAMPLED):
        outputs = llm.generate(PROMPTS, params, use_tqdm=False)
        found += [one.outputs[0].token_ids for one in outputs]
    # A program of its own, and a function that is traced.
    changed = llm.generate(
        PROMPTS, GREEDY, use_tqdm=False, capture="norm", intervene={"layers.0.mlp": double}
    )
    found += [one.outputs[0].token_ids for one in changed]
    return [*found, *(np.asarray(one.captured["norm"]) for one in changed)]


class Given(NamedTuple):
    """Made before anything is set."""

    parameters: dict[str, np.ndarray]
    key: jax.Array


def others(llm: LLM, given: Given) -> list[Any]:
    """The calls that bring arrays, or bring them back."""
    scores = np.asarray(llm.compute_logprobs(PROMPTS[:1]))
    llm.update_params({name: jax.device_put(value) for name, value in given.parameters.items()})
    llm.sleep(level=1)
    llm.wake_up()
    made = llm.generate_arrays(PROMPTS, key=given.key, sampling_params=SAMPLED.clone(seed=None))
    return [scores, *llm.generate(PROMPTS, GREEDY, use_tqdm=False), *map(np.asarray, made)]


def same(found: list[Any], wanted: list[Any]) -> None:
    for one, other in zip(found, wanted, strict=True):
        if hasattr(one, "outputs"):
            one, other = one.outputs[0].token_ids, other.outputs[0].token_ids
        np.testing.assert_array_equal(one, other)


@pytest.fixture(scope="module")
def start(full_folder: Path) -> Callable[[], LLM]:
    return partial(tiny_engine, full_folder, enable_sleep_mode=True)


@pytest.fixture(scope="module")
def running(start: Callable[[], LLM]) -> Iterator[LLM]:
    with start() as llm:
        yield llm


@pytest.fixture(scope="module")
def given(running: LLM) -> Given:
    parameters = running.engine.loaded.parameters()
    return Given({name: np.array(value) for name, value in parameters.items()}, jax.random.key(1))


@pytest.fixture(scope="module")
def wanted(running: LLM, given: Given) -> tuple[list[Any], list[Any]]:
    return answers(running), others(running, given)


def test_everything_is_set_and_taken_back() -> None:
    names = FOR_A_THREAD.keys() - {"promotion of ranks", "old mesh", "seeds"}
    with together([FOR_A_THREAD[name]() for name in sorted(names)]):
        before = foreign_settings()
        # What is left is the engine's own already wherever JAX runs.
        assert OWN.keys() - before.keys() <= {
            "jax_no_execution", "jax_auto_pcast", "jax_allow_f16_reductions",
            "jax_remove_size_one_mesh_axis_from_type",
        }  # fmt: skip
        with engine_context():
            assert foreign_settings() == {} and jax.sharding.get_abstract_mesh().empty
            assert jnp.arange(3).dtype == jnp.int32
        assert foreign_settings() == before and not jax.sharding.get_abstract_mesh().empty
    assert foreign_settings() == {}


@pytest.mark.parametrize(
    ("chosen", "precision"),
    [(None, jax.lax.Precision.HIGHEST), ("tensorfloat32", jax.lax.Precision.HIGH)],
)
def test_float32_is_multiplied_exactly_unless_the_process_asks_otherwise(
    chosen: str | None, precision: jax.lax.Precision
) -> None:
    with (
        for_the_process({"jax_default_matmul_precision": chosen}),
        jax.default_matmul_precision("bfloat16"),
        engine_context(),
    ):
        traced = jax.make_jaxpr(lambda x: x @ x)(jnp.ones((2, 2)))
    assert traced.eqns[0].params["precision"] == (precision, precision)


def test_an_engine_starts_and_answers_whatever_its_thread_has_set(
    start: Callable[[], LLM], wanted: tuple[list[Any], list[Any]], given: Given
) -> None:
    settings = [make() for name, make in FOR_A_THREAD.items() if name not in IDLE | {"leaks"}]
    with together(settings), start() as llm:
        same(answers(llm), wanted[0])
        same(others(llm, given), wanted[1])


def test_an_engine_goes_on_whatever_the_process_sets_later(
    running: LLM, wanted: tuple[list[Any], list[Any]], given: Given
) -> None:
    with together([for_the_process(values) for values in FOR_THE_PROCESS.values()]):
        with ThreadPoolExecutor(1) as threads:
            same(threads.submit(answers, running).result(), wanted[0])
        same(others(running, given), wanted[1])


@pytest.mark.slow
def test_programs_are_compiled_in_the_background_whatever_the_process_has_set(
    full_folder: Path,
) -> None:
    settings: dict[str, Any] = {
        "skip_tokenizer_init": True, "max_model_len": 96, "max_num_seqs": 4,
        "max_num_batched_tokens": 64, "compilation_config": {
            "decode_rows": [2, 4], "prefill_tokens": [32, 64], "variants": ["greedy"],
            "wait_for": "largest",
        },
    }  # fmt: skip
    greedy = GREEDY.clone(logprobs=None)
    with LLM(full_folder, **settings) as llm:
        wanted = llm.generate(PROMPTS, greedy, use_tqdm=False)
    process = together([for_the_process(values) for values in FOR_THE_PROCESS.values()])
    with process, LLM(full_folder, **settings) as llm:
        assert llm.wait_until_warm(120)
        same(llm.generate(PROMPTS, greedy, use_tqdm=False), wanted)


EACH: dict[str, Setting] = {
    **{f"{name}, in a thread": make for name, make in FOR_A_THREAD.items()},
    **{
        f"{name}, in the process": partial(for_the_process, values)
        for name, values in FOR_THE_PROCESS.items()
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EACH)
@pytest.mark.parametrize("when", ["before", "after"])
def test_each_setting(
    name: str, when: str, start: Callable[[], LLM], running: LLM, given: Given,
    wanted: tuple[list[Any], list[Any]],
) -> None:  # fmt: skip
    with ExitStack() as stack:
        if when == "after":
            llm = running
            stack.enter_context(EACH[name]())
        else:
            stack.enter_context(EACH[name]())
            llm = stack.enter_context(start())
        same(answers(llm), wanted[0])
        if name.split(", ")[0] not in IDLE:
            same(others(llm, given), wanted[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", EACH)
def test_each_setting_where_prompts_are_pooled(name: str, embedder: Path) -> None:
    settings: dict[str, Any] = {
        "skip_tokenizer_init": True, "enforce_eager": True, "show_progress": False,
        "max_num_batched_tokens": 64, "compilation_config": {"prefill_tokens": [64]},
    }  # fmt: skip
    with LLM(embedder, **settings) as llm:
        usual = [one.outputs.embedding for one in llm.embed(PROMPTS, use_tqdm=False)]
        with EACH[name](), LLM(embedder, **settings) as other:
            for engine in (llm, other):
                found = [one.outputs.embedding for one in engine.embed(PROMPTS, use_tqdm=False)]
                np.testing.assert_array_equal(found, usual)


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("embedder")
    sizes: dict[str, Any] = {
        "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "dtype": "float32",
        "max_position_embeddings": 256, "pad_token_id": 0,
    }  # fmt: skip
    Qwen3Model(Qwen3Config(**sizes)).eval().save_pretrained(folder)
    return folder
