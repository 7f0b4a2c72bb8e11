"""An engine without a model or jax: the real front, client, core and scheduler before a script."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from jengine.assembly.engine import Engine
from jengine.assembly.processors import RequestProcessors
from jengine.assembly.settings.args import EngineArgs
from jengine.assembly.settings.reasoning_settings import reasoning_marks
from jengine.config import CacheConfig, CacheGroup, CacheSpec, ScheduleConfig
from jengine.engine.core import EngineCore
from jengine.engine.in_process import InProcessClient
from jengine.engine.input_processor import InputProcessor
from jengine.engine.limits import Limits
from jengine.engine.session import Session
from jengine.executor.calls import encoded_answer
from jengine.executor.grammar_masks import GrammarMasks
from jengine.executor.protocol import Executor, WorkerHealth
from jengine.grammar.compiler import GrammarCompiler
from jengine.grammar.grammar_rows import GrammarRows
from jengine.grammar.shared_tokenizer import data_of
from jengine.grammar.tokens import llguidance_tokenizer
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.plan import Plan
from jengine.runner.report_types import ProgramCounts
from jengine.scheduler.gates import GrammarReady, MakeGate
from jengine.scheduler.scheduler import Scheduler
from jengine.structured_outputs import StructuredOutputsDefaults
from tests.executor.scripted import ScriptedExecutor, scripted_tokens

VOCAB = 97
MAX_MODEL_LEN = 1024


class Script(ScriptedExecutor):
    """A scripted executor with everything that an engine asks of one."""

    step_seconds = 0.0
    most_rows = 0  # that ran in one step
    steps = 0
    dropped = False  # the weights, by sleep(level=2)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.asleep: set[str] = set()
        self.goes_on = threading.Event()  # cleared: steps that begin wait until it is set
        self.goes_on.set()

    def submit(self, plan: Plan) -> Any:
        assert not self.asleep, "no step runs while memory sleeps"
        self.steps += 1
        self.most_rows = max(self.most_rows, len(plan.entries))
        time.sleep(self.step_seconds)
        assert self.goes_on.wait(60), "the test holds this step for ever"
        return super().submit(plan)

    def call_workers(self, method: str, arguments: bytes) -> list[bytes]:
        given = msgspec.msgpack.decode(arguments)
        if method == "programs":
            return [encoded_answer(ProgramCounts(3, 1))]
        if method == "sleep":
            self.asleep |= set(given["tags"])
            self.dropped |= given["level"] == 2 and "weights" in given["tags"]
        elif method == "wake_up":
            self.asleep -= set(given["tags"]) - ({"weights"} if self.dropped else set())
        elif method == "reload_weights":
            self.asleep, self.dropped = self.asleep - {"weights"}, False
        else:
            raise AssertionError(method)
        return [encoded_answer(sorted(self.asleep))]

    def health(self) -> list[WorkerHealth]:
        return [WorkerHealth(0, "script", self.steps, 0.0)]


def scripted_engine(
    *,
    tokenizer: Any = None,
    max_num_seqs: int = 8,
    eos_token_ids: tuple[int, ...] = (),
    gates: Sequence[MakeGate] = (),
    **settings: Any,
) -> Engine:
    """An engine whose answers are those of `told`, up to one of `eos_token_ids`."""
    cache = CacheConfig((CacheGroup(CacheSpec("full", 1, 8), (0,)),), 4, (2049,), True)
    schedule = ScheduleConfig(max_num_seqs, 256, MAX_MODEL_LEN, prefill_tile=1)
    script: Executor = Script(cache, VOCAB)
    if tokenizer is not None:
        compiler = GrammarCompiler(lambda: llguidance_tokenizer(data_of(tokenizer), VOCAB, ()))
        gates = [*gates, partial(GrammarReady, compiler.begin)]
        script = GrammarMasks(script, GrammarRows(compiler, VOCAB))
    scheduler = Scheduler(schedule, CacheCoordinator(cache), depth=1, gates=gates)
    client = InProcessClient(EngineCore(scheduler, script, depth=1))
    limits = Limits(VOCAB, MAX_MODEL_LEN, 20, eos_token_ids)
    args = EngineArgs(model="scripted", **settings)
    marks = reasoning_marks(args.reasoning_parser, args.reasoning_config, tokenizer)
    inputs = InputProcessor(
        limits, tokenizer, 0, GrammarCompiler(), StructuredOutputsDefaults(),
        RequestProcessors(None, None), marks=marks,
    )  # fmt: skip
    return Engine(
        session=Session(inputs, client),
        client=client,
        args=args,
        folder=None,
        model=None,  # type: ignore[arg-type]
        schedule=schedule,
        cache=cache,
        tokenizer=tokenizer,
        default_params={"max_tokens": 5},
        devices=None,
    )


def script_of(engine: Engine) -> Script:
    """The executor behind an engine."""
    core = engine.in_process.core
    assert isinstance(core, EngineCore)
    executor = core.executor
    if isinstance(executor, GrammarMasks):
        executor = executor.executor
    assert isinstance(executor, Script)
    return executor


def told(prompt: Sequence[int], count: int) -> list[int]:
    """What the script answers."""
    return scripted_tokens(prompt, count, VOCAB)
