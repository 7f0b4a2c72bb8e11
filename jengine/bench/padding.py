"""Share of padding in steps: schedules a chat trace without a model and counts buckets.

    python -m jengine.bench.padding [--device gpu] [--requests 2000] [--rate 20]

Nothing is computed: sizes of steps are those of an engine for an 8B model, a step takes the time
that reading weights or multiplying by them takes at least, and every answer ends at its length.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from jengine.assembly.settings.args import EngineArgs
from jengine.assembly.sizes.device_defaults import DEVICE_DEFAULTS
from jengine.assembly.sizes.schedule_sizes import schedule_config
from jengine.assembly.sizes.step_sizes import runner_config, with_sizes
from jengine.bench.frame import Benchmark
from jengine.bench.host import NoWorkers, PackedOnly
from jengine.config import CacheConfig
from jengine.engine.core import EngineCore
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.models.reading.published import PUBLISHED
from jengine.models.registry import model_config
from jengine.plan import Plan, RowSampling
from jengine.request import WireRequest
from jengine.runner.plans.packing import bucket_for
from jengine.runner.plans.rows import Rows
from jengine.runner.programs.ledger import CompileLedger, LedgerEntry
from jengine.runner.runner_config import RunnerConfig
from jengine.runner.variants.features import Features
from jengine.scheduler.scheduler import Scheduler

MODEL = "llama-8b"
CACHE_TOKENS = 500_000
# Lengths like those of the first turns of ShareGPT: medians, spread of the logarithm, and the mean
# that results, which is 220 for prompts and 200 for answers.
PROMPTS, ANSWERS = (160, 1.1), (142, 0.95)
SHORTEST, LONGEST = 4, 1024
# A decode step of an 8B model on an H100, and the tokens that are multiplied in that time.
STEP_SECONDS, STEP_TOKENS = 0.007, 256


@dataclass
class ArrivingChat:
    """Arrival time and lengths of one request."""

    arrival: float  # seconds
    prompt: int
    answer: int


@dataclass
class CountingExecutor(NoWorkers):
    """Finds each plan's bucket, counts it in a ledger, and advances simulated device time."""

    steps: RunnerConfig
    ledger: CompileLedger
    seconds: float = 0.0
    useful_seconds: float = 0.0  # without padding

    def __post_init__(self) -> None:
        self.rows = Rows(self.steps.shapes)

    def submit(self, plan: Plan) -> PackedOnly:
        self.rows.apply(plan)
        bucket = bucket_for(plan, self.rows, self.steps.ladders)
        features = Features()
        entry = self.ledger.entries.get((bucket, features))
        if entry is None:
            entry = LedgerEntry(bucket, features, 0.0, 0, 0)
            self.ledger.add(entry)
        entry.count(plan.num_tokens, plan.repeats, plan.num_prompt_tokens)
        self.seconds += step_seconds(bucket.num_tokens)
        self.useful_seconds += step_seconds(plan.num_tokens)
        return PackedOnly(plan)


def step_seconds(tokens: int) -> float:
    """Estimated step time: the larger of weight read and matmul time; attention is ignored."""
    return STEP_SECONDS * max(tokens / STEP_TOKENS, 1.0)


def trace(requests: int, rate: float | None, seed: int = 0) -> list[ArrivingChat]:
    """Chats with Poisson arrivals at this rate per second; None: all at once."""
    rng, now, chats = random.Random(seed), 0.0, []  # noqa: S311
    for _ in range(requests):
        now += rng.expovariate(rate) if rate else 0.0
        chats.append(ArrivingChat(now, length(rng, *PROMPTS), length(rng, *ANSWERS)))
    return chats


def length(rng: random.Random, median: float, spread: float) -> int:
    """A log-normally distributed length."""
    while not SHORTEST <= (drawn := round(median * rng.lognormvariate(0.0, spread))) <= LONGEST:
        pass
    return drawn


def run(chats: list[ArrivingChat], device: str = "gpu", **settings: Any) -> CountingExecutor:
    """Schedule the chats; returns the ledger and the simulated time."""
    config, usual = model_config(PUBLISHED[MODEL]), DEVICE_DEFAULTS[device]
    asked = EngineArgs("any", **settings).groups
    schedule = schedule_config(asked, config, usual)
    steps = runner_config(asked, config, schedule, defaults=usual)
    schedule = with_sizes(schedule, steps.ladders, usual)
    groups, size = steps.shapes.groups, steps.shapes.block_size
    cache = CacheCoordinator(CacheConfig(groups, size, (CACHE_TOKENS // size,) * len(groups)))
    executor = CountingExecutor(steps, CompileLedger())
    core = EngineCore(Scheduler(schedule, cache), executor, depth=1)
    coming = list(reversed(chats))
    while coming or core.has_work:
        if not core.has_work:
            executor.seconds = max(executor.seconds, coming[-1].arrival)
        while coming and coming[-1].arrival <= executor.seconds:
            core.add(wire_of(coming.pop(), len(coming)))
        core.step()
    return executor


def wire_of(chat: ArrivingChat, number: int) -> WireRequest:
    """The request, with a prompt that shares no prefix with others."""
    return WireRequest(
        request_id=str(number),
        prompt_token_ids=[number + 1, *[7] * (chat.prompt - 1)],
        sampling=RowSampling(),
        max_tokens=chat.answer,
    )


def report(chats: list[ArrivingChat], device: str) -> dict[str, Any]:
    executor = run(chats, device)
    ledger, entries = executor.ledger, executor.ledger.entries.values()
    computed = sum(entry.runs * entry.bucket.num_tokens for entry in entries)
    useful = sum(entry.useful_tokens for entry in entries)
    return {
        "requests": len(chats),
        "prefill_padding": round(ledger.prefill_padding, 4),
        "padding": round(1 - useful / computed, 4),
        "padded_time": round(1 - executor.useful_seconds / executor.seconds, 4),
        "steps": sum(entry.hits for entry in entries),
        "steps_with_prompts": sum(e.hits for e in entries if e.useful_prompt_tokens),
    }


FLAGS = {
    "--device": {"choices": tuple(DEVICE_DEFAULTS), "default": "gpu"},
    "--requests": 2000,
    "--rate": {"type": float, "help": "requests per second; all at once without it"},
}
main = Benchmark(
    "padding", __doc__, FLAGS, lambda args: report(trace(args.requests, args.rate), args.device)
).main


if __name__ == "__main__":
    raise SystemExit(main())
