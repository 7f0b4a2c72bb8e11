"""Requests run as soon as the largest program is there; the others are compiled meanwhile."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import jengine
from jengine import SamplingParams
from jengine.assembly import device_side
from jengine.assembly.process_checks import starts_early
from jengine.assembly.settings import warm_up_settings
from jengine.assembly.settings.args import EngineArgs
from jengine.errors import ConfigError
from jengine.runner.programs import background
from jengine.runner.programs.programs import Programs
from jengine.runner.programs.warm_up import compile_in_turn
from jengine.runner.variants.buckets import Bucket
from jengine.runner.variants.program_list import Key
from pallas_kernels.choice import cpu_problem
from tests.api.engines import answers, random_prompts
from tests.models.tiny_models import write_tiny_native

EARLY = {
    "decode_rows": [2, 4],
    "prefill_tokens": [32, 64],
    "variants": ["greedy", "sampled"],
    "wait_for": "largest",
}
SETTINGS: dict[str, Any] = {
    "skip_tokenizer_init": True,
    "max_model_len": 96,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "max_logprobs": 5,
}
PARAMS = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
SAMPLED = SamplingParams(temperature=1.0, seed=7, max_tokens=5, ignore_eos=True)


class Gate:
    """Stands before the compiler of the background: lets programs through when it is told to."""

    def __init__(self) -> None:
        self.permits = threading.Semaphore(0)
        self.began: list[Key] = []
        self.problem: Callable[[Key], None] = lambda key: None

    def compile(self, owners: Sequence[Programs], key: Key) -> Any:
        self.began.append(key)
        self.permits.acquire()
        self.problem(key)
        return compile_in_turn(owners, key)

    def open(self) -> None:
        self.permits.release(1000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_native(
        tmp_path_factory.mktemp("early"), "llama", num_hidden_layers=1, hidden_size=16
    )


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate()
    monkeypatch.setattr(background, "compile_in_turn", gate.compile)
    yield gate
    gate.open()


def early_engine(folder: Path, **compilation: Any) -> jengine.LLM:
    return jengine.LLM(folder, compilation_config={**EARLY, **compilation}, **SETTINGS)


@contextmanager
def early(folder: Path, gate: Gate, **compilation: Any) -> Iterator[jengine.LLM]:
    """An engine that is shut down at the end, with the gate open: shutdown waits for it."""
    with early_engine(folder, **compilation) as llm:
        try:
            yield llm
        finally:
            gate.open()


def sizes(llm: jengine.LLM) -> dict[str, int]:
    """The programs that have run, by bucket and variant, and how often."""
    entries = llm.ledger.entries.values()
    return {f"{one.bucket} {one.features}": one.hits for one in entries if one.hits}


@pytest.mark.slow
def test_the_largest_program_answers_until_the_others_are_there(folder: Path, gate: Gate) -> None:
    prompts = random_prompts(9, 40, 3)
    with early_engine(folder, wait_for="all") as complete:
        expected = [answers(complete.generate(prompts, params)) for params in (PARAMS, SAMPLED)]
    assert gate.began == []
    with early(folder, gate) as llm:
        assert llm.stats().programs == 2 and llm.stats().programs_to_come == 7
        assert "7 still to be compiled" in str(llm.stats())
        assert str(llm.ledger).count("not compiled yet") == 7
        assert not llm.wait_until_warm(0.01)
        assert [answers(llm.generate(prompts, params)) for params in (PARAMS, SAMPLED)] == expected
        assert list(sizes(llm)) == ["4+64x6 forward", "6 slots sample random"]
        gate.open()
        assert llm.wait_until_warm()
        assert llm.stats().programs == 9 and llm.stats().programs_to_come == 0
        assert "not compiled yet" not in str(llm.ledger)
        assert [answers(llm.generate(prompts, params)) for params in (PARAMS, SAMPLED)] == expected
        assert {"2 slots sample greedy", "4 slots sample random"} <= set(sizes(llm))
        assert {"2+0x6 forward", "4+0x6 forward"} <= set(sizes(llm))
        assert llm.stats().compiles_after_warm_up == 0
    assert len(set(gate.began)) == len(gate.began) == 7


@pytest.mark.slow
def test_a_program_is_used_as_soon_as_it_is_there(folder: Path, gate: Gate) -> None:
    with early(folder, gate) as llm:
        # What samples comes first, and then the smallest decode step.
        gate.permits.release(5)
        while llm.stats().programs < 7:
            threading.Event().wait(0.005)
        llm.generate(random_prompts(9), PARAMS)
        assert sizes(llm) == {
            "4+64x6 forward": 1, "6 slots sample random": 1,
            "2+0x6 forward": 4, "2 slots sample greedy": 4,
        }  # fmt: skip


def test_what_steps_ask_for_most_is_compiled_next(folder: Path, gate: Gate) -> None:
    def order_only(key: Key) -> None:
        raise RuntimeError("not compiled: the order is enough")

    gate.problem = order_only
    with early(folder, gate) as llm:
        while not gate.began:
            threading.Event().wait(0.005)
        llm.generate(random_prompts(60), PARAMS)
        gate.open()
        with pytest.raises(RuntimeError, match="the order is enough"):
            llm.wait_until_warm()
    made = [f"{bucket} {features}" for bucket, features in gate.began]
    # The first was begun before the request came, whose answer ran one token at a time.
    assert made[:2] == ["2 slots sample greedy", "2+0x6 forward"]
    # Then in the order given: what samples, and the other sizes.
    assert made[2:5] == [
        "2 slots sample random", "4 slots sample greedy", "4 slots sample random",
    ]  # fmt: skip
    assert made[5:] == ["4+0x6 forward", "4+32x6 forward"]


def test_requests_are_answered_without_a_program_that_does_not_compile(
    folder: Path, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(key: Key) -> None:
        if isinstance(key[0], Bucket) and not key[0].prefill_tokens:
            raise RuntimeError("the compiler is ill")

    caplog.set_level(logging.ERROR, logger="jengine")
    gate.problem = fail
    gate.open()
    with early(folder, gate, variants=["greedy"]) as llm:
        with pytest.raises(RuntimeError, match="the compiler is ill"):
            llm.wait_until_warm()
        assert llm.generate(random_prompts(9), PARAMS)[0].finished
        assert sizes(llm) == {"4+32x6 forward": 5, "6 slots sample greedy": 5}
        assert llm.stats().programs_to_come == 2 and llm.stats().compiles_after_warm_up == 0
    told = [record for record in caplog.records if "while serving failed" in record.getMessage()]
    assert len(told) == 2 and all(record.exc_info for record in told)


def test_shutdown_ends_it_after_the_program_in_progress(folder: Path, gate: Gate) -> None:
    llm = early_engine(folder)
    while not gate.began:
        threading.Event().wait(0.005)
    threading.Timer(0.05, gate.permits.release).start()
    llm.shutdown()
    assert len(gate.began) == 1
    assert "jengine-warm-up" not in {thread.name for thread in threading.enumerate()}


def test_an_engine_that_nobody_holds_is_not_warmed_up(folder: Path, gate: Gate) -> None:
    llm = early_engine(folder)
    thread = llm.engine.loaded.background._thread
    del llm
    gc.collect()
    gate.permits.release(2)  # one may have been begun before, and one be on its way
    thread.join(60)
    assert not thread.is_alive() and len(gate.began) <= 2


async def first_words(engine: jengine.AsyncLLM) -> list[int]:
    [prompt] = random_prompts(9)
    async for output in engine.generate({"prompt_token_ids": prompt}, PARAMS):
        last = output
    return last.outputs[0].token_ids


@pytest.mark.slow
def test_an_engine_in_asyncio_starts_early_too(folder: Path, gate: Gate) -> None:
    async def both() -> list[list[int]]:
        found = []
        for wait_for in ("largest", "all"):
            engine = jengine.AsyncLLM(
                folder,
                compilation_config={**EARLY, "variants": ["greedy"], "wait_for": wait_for},
                **SETTINGS,
            )
            found.append(await first_words(engine))
            gate.open()
            await engine.shutdown()
        return found

    early, complete = asyncio.run(both())
    assert early == complete and len(early) == PARAMS.max_tokens
    assert "jengine-warm-up" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own there")
def test_only_the_thread_that_compiles_steps_back() -> None:
    def priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def run() -> None:
        background.lower_priority()
        found.append(priority())

    found, before = [], priority()
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [min(before + background.NICENESS, 19)] and priority() == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "status"), [("", 0), ("raise KeyboardInterrupt", -2), ("raise SystemExit(3)", 3)]
)
def test_the_program_ends_without_waiting_for_the_rest(
    folder: Path, ending: str, status: int
) -> None:
    code = f"""
import time, jengine
from jengine.runner.programs import background
compiled = background.compile_in_turn
def slow(owners, key):
    print("compiling", flush=True)
    time.sleep(0.5)
    return compiled(owners, key)
background.compile_in_turn = slow
llm = jengine.LLM({str(folder)!r}, compilation_config={EARLY!r}, **{SETTINGS!r})
time.sleep(0.1)
{ending}
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.count("compiling") <= 2, done.stdout
    assert done.returncode == status, done.stderr


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"strict": True}, "strict=True"),
        ({"enforce_eager": True}, "enforce_eager=True"),
        ({"executor": "ray"}, "executor='ray'"),
        ({"executor": "multihost"}, "executor='multihost'"),
    ],
)
def test_what_needs_a_complete_warm_up_says_so(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=f"wait_for.*{complaint}"):
        EngineArgs(model="demo", compilation_config={"wait_for": "largest"}, **settings)
    EngineArgs(model="demo", compilation_config={"wait_for": "all"}, **settings)


def test_processes_that_must_choose_alike_do_not_start_early() -> None:
    early: Any = SimpleNamespace(early_start=True)
    complete: Any = SimpleNamespace(early_start=False)
    assert starts_early(early, [1], chosen=False) and starts_early(early, [1], chosen=True)
    assert not starts_early(complete, [0, 1], chosen=True)
    assert not starts_early(early, [0, 1], chosen=False)
    with pytest.raises(ConfigError, match=r"wait_for.*processes \[0, 1\].*same programs"):
        starts_early(early, [0, 1], chosen=True)


@pytest.mark.parametrize(
    "settings",
    [
        {"seed": 0}, {"strict": True}, {"enforce_eager": True}, {"num_scheduler_steps": 2},
        {"executor": "ray"},
        {"compilation_config": {"wait_for": "all"}},
    ],
)  # fmt: skip
def test_engines_start_early_unless_answers_must_not_depend_on_time(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    assert EngineArgs(model="demo", **settings).wait_for == "all"
    monkeypatch.setattr(warm_up_settings, "USUAL_WAIT", "largest")
    assert EngineArgs(model="demo").wait_for == "largest"
    assert EngineArgs(model="demo", seed=0, deterministic=True).wait_for == "largest"
    assert EngineArgs(model="demo", **settings).wait_for == "all"


def test_a_seed_does_not_wait_where_every_program_gives_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(warm_up_settings, "USUAL_WAIT", "largest")
    seeded = EngineArgs(model="demo", seed=0)
    assert seeded.warm_up.wait_for(same_bits=True) == "largest" != seeded.wait_for
    asked = EngineArgs(model="demo", seed=0, compilation_config={"wait_for": "all"})
    assert asked.warm_up.wait_for(same_bits=True) == "all"


@pytest.mark.skipif(bool(cpu_problem()), reason=str(cpu_problem()))
@pytest.mark.parametrize(("backend", "early"), [("cpu", True), ("xla", False)])
def test_an_engine_with_a_seed_starts_early_on_the_cpu_kernels_alone(
    backend: Any, early: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_up_settings, "USUAL_WAIT", "largest")
    found: list[bool] = []

    def refused(steps: Any, *given: Any, **more: Any) -> bool:
        found.append(starts_early(steps, *given, **more))
        raise RuntimeError("seen")

    monkeypatch.setattr(device_side, "starts_early", refused)
    with pytest.raises(RuntimeError, match="seen"):
        jengine.LLM(folder, seed=0, attention_backend=backend, **SETTINGS)
    assert found == [early]


def test_what_cannot_be_waited_for_is_refused() -> None:
    with pytest.raises(ConfigError, match="'smallest': expected one of 'all', 'largest'"):
        EngineArgs(model="demo", compilation_config={"wait_for": "smallest"})
    with pytest.raises(ConfigError, match="'largest' with num_scheduler_steps=4: the largest step"):
        EngineArgs(model="demo", num_scheduler_steps=4, compilation_config={"wait_for": "largest"})


@pytest.mark.slow
def test_one_program_for_all_numbers_leaves_nothing_to_compile(folder: Path) -> None:
    with jengine.LLM(
        folder, deterministic=True, attention_backend="xla",
        compilation_config={"wait_for": "largest"}, **SETTINGS
    ) as llm:  # fmt: skip
        llm.wait_until_warm()
        assert len(llm.generate([[5, 6, 7]])[0].outputs[0].token_ids) > 0
        # The model, the sampler, and what scores prompts.
        assert len(llm.ledger.entries) == 3
