"""Copies of a model side by side answer as one does, share arrays, and change all at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jengine
from jengine import SamplingParams
from jengine.distributed.data_parallel import DataParallelCore
from jengine.engine.core import EngineCore
from jengine.errors import ConfigError, EngineDead, UnsupportedFeature
from jengine.executor.local import LocalExecutor
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.models.parameter import named_parameters
from jengine.research.sweeps import short_pieces
from jengine.scheduler.scheduler import Scheduler
from jengine.weights.abstract import with_values
from sharding.placement import Placement, put
from tests.api.engines import answers, random_prompts, tiny_engine
from tests.sharding.eight_devices.memory import shares_memory
from tests.sharding.eight_devices.same_answers import PARAMS, PROMPTS, run

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
# More than a small cache holds.
MANY = random_prompts(*(30 + 17 * i for i in range(10)), seed=4)
MANY_PARAMS = [PARAMS[i % 3] for i in range(10)]


def copies(folder: Any, replicas: int, devices: int = 1, **settings: Any) -> jengine.LLM:
    return tiny_engine(
        folder, data_parallel_size=replicas, tensor_parallel_size=devices, **settings
    )


def core_of(llm: jengine.LLM) -> DataParallelCore:
    core = llm.engine.in_process.core
    assert isinstance(core, DataParallelCore)
    return core


def pointers(array: jax.Array) -> dict[int, int]:
    return {s.device.id: s.data.unsafe_buffer_pointer() for s in array.addressable_shards}


@pytest.fixture(scope="module")
def one(folder: Path) -> Iterator[jengine.LLM]:
    with tiny_engine(folder) as llm:
        yield llm


@pytest.fixture(scope="module")
def two(folder: Path) -> Iterator[jengine.LLM]:
    with copies(folder, 2) as llm:
        yield llm


@pytest.fixture(scope="module")
def expected(one: jengine.LLM) -> tuple[list[Any], list[Any]]:
    return run(one), answers(one.generate(MANY, MANY_PARAMS))


@contextmanager
def rescheduled(llm: jengine.LLM, num_blocks: int, **schedule: Any) -> Iterator[None]:
    """Other schedulers and smaller caches before the same compiled steps."""
    engine, core = llm.engine, core_of(llm)
    cache = replace(engine.cache, num_blocks=(num_blocks,) * len(engine.cache.groups))
    settings = replace(engine.schedule, **schedule)
    depth = core.replicas[0].depth
    replicas = [
        EngineCore(
            Scheduler(settings, CacheCoordinator(cache), depth=depth), LocalExecutor(runner), depth
        )
        for runner in engine.runners
    ]
    engine.in_process.core = DataParallelCore(replicas, core.names, core.split, core.in_turn)
    yield
    assert core.reset_prefix_cache()  # others have written over what it believes to have
    engine.in_process.core = core


def answers_alike(llm: jengine.LLM, expected: tuple[list[Any], list[Any]]) -> None:
    """Whole and in chunks, from the prefix cache, and preempted for want of blocks."""
    for _ in range(2):
        assert run(llm) == expected[0]
        assert answers(llm.generate(MANY, MANY_PARAMS)) == expected[1]
    assert all(one.prefix_hits > 0 for one in llm.stats().replicas)
    with rescheduled(llm, 20, max_num_batched_tokens=64):
        for _ in range(2):
            assert run(llm) == expected[0]
            assert answers(llm.generate(MANY, MANY_PARAMS)) == expected[1]
        stats = llm.stats()
    assert stats.preemptions == sum(one.preemptions for one in stats.replicas) > 0
    assert f"replica {len(stats.replicas) - 1}: running 0" in str(stats)


def test_two_replicas_answer_as_one(
    two: jengine.LLM, expected: tuple[list[Any], list[Any]]
) -> None:
    assert two.mesh.shape == {"dp": 2, "pp": 1, "tp": 1, "tp_replicas": 1}
    assert core_of(two).replicas[0].depth == 1 and not core_of(two).in_turn
    answers_alike(two, expected)


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [2, 4])
def test_replicas_of_two_devices(
    folder: Path, expected: tuple[list[Any], list[Any]], replicas: int
) -> None:
    with copies(folder, replicas, 2) as llm:
        assert llm.mesh.shape == {"dp": replicas, "pp": 1, "tp": 2, "tp_replicas": 1}
        # Exchanges of two replicas would wait for the same threads of one CPU.
        assert core_of(llm).replicas[0].depth == 0 and core_of(llm).in_turn
        answers_alike(llm, expected)


@pytest.mark.slow
def test_strict_mode_compiles_nothing_while_serving(folder: Path) -> None:
    """One program for all replicas: what XLA gets is the same text for each."""
    settings = {"variant": "greedy", "max_logprobs": 0, "strict": True, "enforce_eager": False}
    with copies(folder, 2, **settings) as llm:
        llm.generate(MANY, GREEDY)
        stats = llm.stats()
        assert stats.compiles_after_warm_up == 0
        entries = list(llm.ledger.entries.values())
        assert [entry.compiles for entry in entries] == [2] * stats.programs
        assert f"{stats.programs} programs compiled {2 * stats.programs} times" in str(llm.ledger)
        assert sum(entry.useful_tokens for entry in entries) >= sum(map(len, MANY))
        compilers = [runner.loaded.programs.compiler for runner in llm.engine.runners]
        bucket, features = entries[0].bucket, entries[0].features
        texts = {one.lower(bucket, features).as_text() for one in compilers}
        assert len(texts) == 1


def test_parameters_lie_once_on_each_device(two: jengine.LLM) -> None:
    names = [name for name, _ in named_parameters(two.engine.declared)]
    assert list(two.param_shardings) == names
    for name, leaf in two.engine.loaded.parameters().items():
        whole = two.param_shardings[name]
        assert whole.mesh == two.mesh and "dp" not in str(whole.spec)
        assert whole.shard_shape(leaf.shape) == leaf.sharding.shard_shape(leaf.shape)
    for runner, place in zip(two.engine.runners, two.engine.placement.replicas, strict=True):
        devices = set(place.mesh.devices.flat)
        assert all(leaf.sharding.device_set == devices for leaf in runner.loaded.leaves)
        assert runner.loaded.state.caches[0].sharding.device_set == devices


def test_live_arrays_are_used_where_they_lie(folder: Path) -> None:
    """Of a mesh with its axes in another order too; and a trainer that donates them is noticed."""
    devices = np.array(jax.devices()[:4]).reshape(2, 2)
    mesh = Mesh(devices.T, ("model", "dp"))
    settings = {"mesh": mesh, "max_logprobs": 0, "pack_weights": False}
    with tiny_engine(folder, "greedy", **settings) as llm:
        assert llm.mesh.shape["dp"] == llm.mesh.shape["tp"] == 2
        engine = llm.engine
        assert [r.loaded.leaves[0].sharding.device_set for r in engine.runners] == [
            set(devices[0]), set(devices[1]),
        ]  # fmt: skip
        names = list(llm.param_shardings)
        given = {
            name: put(np.asarray(leaf), NamedSharding(mesh, user_spec(leaf.sharding.spec)))
            for name, leaf in zip(names, engine.loaded.leaves, strict=True)
        }
        assert llm.update_params(given, donate=True) == 1
        for runner in engine.runners:
            for name, leaf in zip(names, runner.loaded.leaves, strict=True):
                assert pointers(leaf).items() <= pointers(given[name]).items(), name
        assert not any(array.is_deleted() for array in given.values())
        # The second replica's part of an array goes with the array.
        jax.jit(lambda x: x + 1, donate_argnums=0)(given["norm.weight"])
        assert all(
            runner.loaded.leaves[names.index("norm.weight")].is_deleted()
            for runner in engine.runners
        )
        with pytest.raises(ConfigError, match="parameters were deleted"):
            llm.generate(PROMPTS, GREEDY)


def user_spec(spec: Any) -> PartitionSpec:
    """The engine's spec in the words of a mesh whose other axis is "model"."""
    return PartitionSpec(*("model" if names else None for names in spec))


def test_weights_change_everywhere_or_nowhere(two: jengine.LLM) -> None:
    before = [runner.loaded.leaves for runner in two.engine.runners]
    parameters = two.engine.loaded.parameters()
    values = {name: np.array(array) for name, array in parameters.items()}
    old = answers(two.generate(MANY, GREEDY))
    version = two.weights_version
    with pytest.raises(ConfigError, match="nothing was changed"):
        two.update_params({**values, "norm.weight": np.zeros(3, np.float32)})
    assert [runner.loaded.leaves for runner in two.engine.runners] == before
    assert two.weights_version == version
    changed = {name: value * 1.5 for name, value in values.items()}
    assert two.update_params(changed) == version + 1
    assert {core.weights_version for core in core_of(two).replicas} == {version + 1}
    outputs = two.generate(MANY, GREEDY)
    assert {output.weight_version for output in outputs} == {version + 1}
    assert {output.num_cached_tokens for output in outputs} == {0}
    assert answers(outputs) != old
    assert two.update_params(values) == version + 2
    assert answers(two.generate(MANY, GREEDY)) == old


def test_what_else_an_engine_does(
    one: jengine.LLM, two: jengine.LLM, folder: Path, tmp_path: Path
) -> None:
    rows = [prompt[:20] for prompt in MANY]
    for count in (0, 3):
        scores = [llm.compute_logprobs(rows, top_k=count) for llm in (one, two)]
        for left, right in zip(*map(jax.tree.leaves, scores), strict=True):
            np.testing.assert_allclose(left, right, atol=1e-5)
    key, params = jax.random.key(3), SamplingParams(max_tokens=4)
    wanted, found = (
        llm.generate_arrays(rows, key=key, sampling_params=params) for llm in (one, two)
    )
    np.testing.assert_array_equal(wanted.tokens, found.tokens)
    assert "on each of 2 devices" in str(two.memory())
    two.save(tmp_path / "saved")
    with tiny_engine(tmp_path / "saved", mesh=one.mesh) as again:
        pairs = zip(again.engine.loaded.leaves, one.engine.loaded.leaves, strict=True)
        assert all(np.array_equal(left, right) for left, right in pairs)
    assert two.reset_prefix_cache()
    stream = two.stream(MANY, GREEDY)
    next(stream)
    assert not two.reset_prefix_cache()
    stream.close()
    assert two.stats().running == two.stats().waiting == 0
    assert two.reset_prefix_cache()


def test_one_process_answers_for_all_replicas(two: jengine.LLM) -> None:
    replicas = two.engine.in_process.core.replicas
    before = [replica.health()[0].step for replica in replicas]
    (own,) = two.health(probe=True)
    assert (own.rank, own.silent) == (0, 0.0)
    assert [replica.health()[0].step for replica in replicas] == [step + 1 for step in before]
    (memory,) = two.call_workers("memory")
    assert memory.cache > 0


def test_the_comparison_cuts_prompts_in_one_replica(two: jengine.LLM) -> None:
    """Its own scheduler writes over what the first replica had cached."""
    whole = answers(two.generate(MANY, GREEDY))
    with short_pieces(two, 32):
        assert answers(two.generate(MANY, GREEDY)) == whole
        assert two.stats().replicas == ()
    outputs = two.generate(MANY, GREEDY)
    assert answers(outputs) == whole and not any(one.num_cached_tokens for one in outputs)


@pytest.mark.slow
def test_taps_are_the_same_set_in_every_replica(one: jengine.LLM, two: jengine.LLM) -> None:
    captured = [
        llm.generate(MANY[:4], GREEDY, capture="norm", intervene={"layers.0.mlp": halved})
        for llm in (one, two)
    ]
    assert answers(captured[0]) == answers(captured[1]) != answers(one.generate(MANY[:4], GREEDY))
    for left, right in zip(*captured, strict=True):
        np.testing.assert_allclose(left.captured["norm"], right.captured["norm"], atol=1e-5)


def halved(values: jax.Array) -> jax.Array:
    return 0.5 * values


def test_requests_that_come_one_by_one(
    two: jengine.LLM, expected: tuple[list[Any], list[Any]]
) -> None:
    async def answer(llm: jengine.AsyncLLM, number: int) -> list[int]:
        await asyncio.sleep(number / 100)
        async for output in llm.generate(MANY[number], MANY_PARAMS[number]):
            last = output
        return last.outputs[0].token_ids

    async def main() -> list[list[int]]:
        llm = jengine.AsyncLLM.from_engine_args(two.engine.args)
        try:
            found = await asyncio.gather(*(answer(llm, number) for number in range(len(MANY))))
        finally:
            await llm.shutdown()
        return found

    assert [[tokens] for tokens in asyncio.run(main())] == expected[1]


def test_ctrl_c_ends_the_requests_of_every_replica(
    two: jengine.LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    core, calls = core_of(two), []

    def step() -> list[Any]:
        calls.append(threading.get_ident())
        if len(calls) == 3:
            raise KeyboardInterrupt
        return DataParallelCore.step(core)

    monkeypatch.setattr(core, "step", step)
    with pytest.raises(KeyboardInterrupt):
        two.generate(MANY, GREEDY)
    assert two.stats().running == two.stats().waiting == 0
    assert core.router.loads == [0, 0]
    monkeypatch.undo()
    assert len(answers(two.generate(MANY, GREEDY))) == len(MANY)


@pytest.mark.slow
def test_deterministic_numbers_are_bitwise_equal_on_any_replica(folder: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True, logprobs=3)
    numbers = []
    for replicas in (1, 2):
        with jengine.LLM(
            folder, deterministic=True, data_parallel_size=replicas, skip_tokenizer_init=True,
            max_model_len=256, enforce_eager=True,
        ) as llm:  # fmt: skip
            outputs = llm.generate(MANY, params)
            numbers.append([output.outputs[0].logprobs_array for output in outputs])
    for left, right in zip(*numbers, strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.slow
def test_live_modules_and_orbax(
    folder: Path, tmp_path: Path, expected: tuple[list[Any], list[Any]]
) -> None:
    with copies(folder, 2, 2) as llm:
        model = with_values(llm.engine.declared, llm.engine.loaded.parameters())
        with copies(model, 2, 2) as other:
            assert run(other) == expected[0]
        llm.save(tmp_path / "saved", format="orbax")
    with copies(tmp_path / "saved", 2, 2, load_format="orbax") as llm:
        assert run(llm) == expected[0]


def test_a_replica_that_fails_is_named(folder: Path) -> None:
    with copies(folder, 2, variant="greedy", max_logprobs=0) as llm:
        runner = llm.engine.runners[1]
        runner.loaded.state = runner.loaded.state._replace(caches=())
        with pytest.raises(EngineDead, match=r"data-parallel replica 1 of 2, on .*1.*: a step"):
            llm.generate(MANY, GREEDY)
        with pytest.raises(EngineDead, match="has stopped"):
            llm.generate(MANY, GREEDY)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data_parallel_size": 3, "tensor_parallel_size": 3}, "takes 9 devices; JAX sees 8 CPU"),
        ({"data_parallel_size": 0}, "expected a positive integer"),
        ({"data_parallel_size": 9}, "data_parallel_size=9 with tensor_parallel_size=1 takes 9"),
        ({"data_parallel_size": 2, "mesh": ((4,), ("a",))}, "axis 'dp' has the size 1"),
        ({"data_parallel_size": 2, "mesh": ((4, 2), ("dp", "a"))}, "axis 'dp' has the size 4"),
        ({"mesh": ((2, 4), ("dp", "a")), "tensor_parallel_size": 2}, "a mesh of 4 devices"),
    ],
)
def test_bad_input(folder: Path, settings: dict[str, Any], message: str) -> None:
    mesh = settings.get("mesh")
    if isinstance(mesh, tuple):
        shape, names = mesh
        devices = np.array(jax.devices()[: np.prod(shape)]).reshape(shape)
        settings = {**settings, "mesh": Mesh(devices, names)}
    with pytest.raises(ConfigError, match=message):
        tiny_engine(folder, **settings)


def test_several_processes_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Placement, "processes", property(lambda self: [0, 1]))
    with pytest.raises(UnsupportedFeature, match="data parallelism over several processes"):
        copies(folder, 2)


def test_arrays_in_another_order_are_the_same_memory() -> None:
    devices = np.array(jax.devices()[:4]).reshape(2, 2)
    spec = PartitionSpec(None, "tp")
    one, other = Mesh(devices, ("dp", "tp")), Mesh(devices.T, ("tp", "dp"))
    array = jax.device_put(np.arange(32.0).reshape(4, 8), NamedSharding(one, spec))
    seen = put(array, NamedSharding(other, spec))
    assert seen.sharding == NamedSharding(other, spec) and shares_memory(array, seen)
    moved = put(array, NamedSharding(Mesh(devices.T, ("dp", "tp")), spec))
    assert pointers(moved) != pointers(array)
    for result in (seen, moved):
        np.testing.assert_array_equal(result, np.arange(32.0).reshape(4, 8))
