"""The questions that fronts ask a core: what each one calls, and the type of its answer.

In: a question and the core's client. Out: the answer as bytes, and back. Must not know sockets.
"""

from __future__ import annotations

from typing import Any

import msgspec

from jengine.counts import Counts
from jengine.engine.client import EngineClient
from jengine.engine.process.step_loop import StepLoop
from jengine.engine.process.to_core import (
    AskHealth,
    AskStats,
    CallWorkers,
    Pause,
    Probe,
    Question,
    ReloadWeights,
    ResetPrefixCache,
    Resume,
    Settle,
    Sleep,
    WakeUp,
)
from jengine.executor.protocol import WorkerHealth

# Question -> type of its answer. Those that are missing answer nothing.
ANSWERS: dict[type, Any] = {
    AskStats: Counts,
    CallWorkers: list[bytes],
    ResetPrefixCache: bool,
    AskHealth: list[WorkerHealth],
    WakeUp: bool,
}


def answer(question: Question, client: EngineClient, steps: StepLoop) -> bytes:
    """Ask the core. Waits for the end of the step in progress, except about health."""
    return msgspec.msgpack.encode(_value(question, client, steps))


def decoded(question: Question, value: bytes) -> Any:
    """The answer in these bytes; a msgspec.DecodeError if it is none to this question."""
    return msgspec.msgpack.decode(value, type=ANSWERS.get(type(question)))


def _value(question: Question, client: EngineClient, steps: StepLoop) -> Any:
    match question:
        case Settle():
            return client.settle()
        case AskStats():
            return client.stats()
        case CallWorkers(method, arguments):
            return client.call(method, arguments)
        case ResetPrefixCache(reset_running_requests):
            return client.reset_prefix_cache(reset_running_requests)
        case AskHealth():
            return client.health()
        case Probe():
            return client.probe()
        case Pause():
            return steps.pause()
        case Resume():
            client.resume()
            return steps.resume()
        case Sleep(level, tags):
            return steps.rest(lambda: client.sleep(level, tags))
        case WakeUp(tags):
            return client.wake_up(tags)
        case ReloadWeights():
            return client.reload_weights()
