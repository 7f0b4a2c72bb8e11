"""The program of a core process without a model or jax."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import msgspec

import jengine
from jengine.assembly.grammars import core_grammars
from jengine.assembly.model_facts import ModelSource
from jengine.config import (
    AttentionConfig,
    CacheConfig,
    LayerConfig,
    MlpConfig,
    ModelConfig,
    ScheduleConfig,
)
from jengine.engine.core import EngineCore
from jengine.engine.in_process import InProcessClient
from jengine.engine.process.child import run_core
from jengine.engine.process.core_server import CoreServer, Served
from jengine.engine.process.model_frame import ModelFrame
from jengine.engine.process.to_front import Progress, Ready
from jengine.errors import ConfigError, UnexpectedCompile
from jengine.executor.calls import encoded_answer
from jengine.executor.protocol import Executor
from jengine.grammar.shared_tokenizer import SharedTokenizer
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.plan import Plan
from jengine.scheduler.gates import MakeGate
from jengine.scheduler.scheduler import Scheduler
from tests.engine.scripted import Script

VOCAB = 97
LAYER = LayerConfig(AttentionConfig(2, 1, 8), MlpConfig(8))
MODEL = ModelConfig("Scripted", VOCAB, 16, 1024, (LAYER, LAYER))


@dataclass(frozen=True)
class Settings:
    """What the script does besides telling tokens."""

    step_seconds: float = 0.0
    fails_at: int = -1  # the step that raises
    refuses_at: int = -1  # the step for which a program is missing
    start: str = ""  # "fail", "crash", "slow", "children"
    max_num_seqs: int = 8
    num_blocks: int = 65
    grammars: bool = False


class FaultyScript(Script):
    """A script that also fails, and says which modules its process has imported."""

    settings = Settings()

    def call_workers(self, method: str, arguments: bytes) -> list[bytes]:
        if method == "modules":
            return [encoded_answer(sorted(sys.modules))]
        return super().call_workers(method, arguments)

    def submit(self, plan: Plan) -> Any:
        if self.steps == self.settings.fails_at:
            raise RuntimeError("told to fail")
        if self.steps == self.settings.refuses_at:
            self.steps += 1
            raise UnexpectedCompile("told to need a program")
        return super().submit(plan)


def served_core(settings: Settings, tokenizer: SharedTokenizer | None = None) -> Served:
    """The client of a scripted core, and what its fronts are told."""
    cache = CacheConfig(MODEL.groups, 16, (settings.num_blocks,))
    schedule = ScheduleConfig(settings.max_num_seqs, 256, 1024)
    script = FaultyScript(cache, VOCAB)
    script.settings = settings
    script.step_seconds = settings.step_seconds
    executor: Executor = script
    gates: list[MakeGate] = []
    if tokenizer is not None:
        source = ModelSource(MODEL, None, None, {}, tokenizer)
        grammars = core_grammars(source)
        executor, gates = grammars.around(script), [grammars.gate]
    scheduler = Scheduler(schedule, CacheCoordinator(cache), depth=1, gates=gates)
    core = EngineCore(scheduler, executor, 1)
    ready = Ready(
        os.getpid(), ModelFrame.of(MODEL), None, schedule, cache, "cpu", jengine.__version__
    )
    return Served(InProcessClient(core), ready, core.scheduler.cache.listeners.record())


def build(data: bytes, server: CoreServer) -> Served:
    settings = msgspec.msgpack.decode(data, type=Settings)
    server.report(Progress("Loading weights", 1, 4, "B", 2.0))
    logging.getLogger("jengine.test").warning("the core speaks")
    match settings.start:
        case "fail":
            raise ConfigError("told not to start")
        case "crash":
            os._exit(3)
        case "slow":
            time.sleep(600)
        case "children":
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    return served_core(settings, server.tokenizer if settings.grammars else None)


if __name__ == "__main__":
    run_core(build)
