"""Runs decode steps under the profiler: `LLM.profile`.

In: a function that answers rows of tokens, and a number of steps. Out: the profile. The same work
runs once before, so that nothing compiles while recording.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from jengine.api.front import Front
from jengine.api.metrics import cost_model
from jengine.api.profile_table import ProfileTable, operations_of
from jengine.engine.questions import AskStats
from jengine.errors import RequestError
from jengine.metrics.cost import StepCost
from jengine.sampling_params import SamplingParams

PROMPT = 16  # tokens
Answer = Callable[[list[list[int]], list[SamplingParams]], Any]


def profiled(
    front: Front, answer: Answer, folder: str, steps: int, batch: int | None
) -> ProfileTable:
    """Record decode steps of a batch."""
    engine = front.engine
    longest = engine.schedule.max_model_len - PROMPT
    rows = engine.schedule.max_num_seqs if batch is None else batch
    if not 1 <= steps <= longest or rows < 1:
        raise RequestError(
            f"profile(steps={steps}, batch={batch}): expected 1 to {longest} steps, as a context "
            "holds, and at least one request."
        )
    params = SamplingParams(temperature=0, max_tokens=steps, ignore_eos=True)

    def work(first: int) -> None:
        vocab = engine.model.vocab_size
        prompts = [[(first + 31 * row + i) % vocab for i in range(PROMPT)] for row in range(rows)]
        answer(prompts, [params] * rows)

    engine.wait_until_warm()
    work(1)
    cost = cost_model(engine)
    before = cost.of(front.session.client.ask(AskStats()))
    front.call_workers("start_profile", {"folder": folder})
    began = time.perf_counter()
    try:
        work(2)
    finally:
        seconds = time.perf_counter() - began
        front.call_workers("stop_profile", {})
    after = cost.of(front.session.client.ask(AskStats()))
    spent = StepCost(
        after.operations - before.operations, after.read - before.read,
        after.written - before.written,
    )  # fmt: skip
    return ProfileTable(folder, steps, seconds, spent, operations_of(folder))
