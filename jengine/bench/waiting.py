"""Scheduler cost per step by number of waiting requests and what they wait for.

    python -m jengine.bench.waiting [--counts 0 1000 100000] [--output-json FILE]

Eight streams decode while so many requests wait for one thing, in caches of several families. A
step is planned and committed: the median microseconds, and the calls of Python functions, which
are the same on every machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from jengine.bench.frame import Benchmark
from jengine.config import CacheConfig, CacheGroup, CacheSpec, ScheduleConfig
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.media_spans import MediaSpan
from jengine.outputs import StepOutput
from jengine.plan import RowSampling
from jengine.request import Request, WireRequest
from jengine.scheduler.gates import GrammarReady, MakeGate
from jengine.scheduler.scheduler import Scheduler
from jengine.scheduler.tiered_transfers import TieredTransfers
from jengine.structured_outputs import GrammarSpec

STREAMS, BLOCK_SIZE, IMAGE = 8, 16, 64
STEPS, COUNTED = 60, BLOCK_SIZE  # timed, and counted: as streams fill a block each
CHUNK = 4 * BLOCK_SIZE  # tokens of prompts in a step, after which states are kept
PREFIX = (STEPS + COUNTED + 8) * CHUNK  # tokens of a prompt that runs in all steps
FULL = CacheGroup(CacheSpec("full", 8, 128), (0,))
FAMILIES: Mapping[str, tuple[CacheGroup, ...]] = {
    "full": (FULL,),
    "full and sliding": (FULL, CacheGroup(CacheSpec("sliding", 8, 128, 512), (1,))),
    "full and recurrent": (
        FULL,
        CacheGroup(CacheSpec("recurrent", 0, 0, window=4, snapshot_every=CHUNK), (1,)),
    ),
}


class EndlessCompilation:
    """A compilation future that never completes."""

    is_over, has_begun = False, True

    def listen(self, tell: Callable[[], None]) -> None:
        pass


class NeverMade:
    """A scheduler gate: requests wait for a program that is never compiled."""

    def __init__(self, wake: Callable[[Hashable], None]) -> None:
        pass  # the program never comes, so no request is woken

    def awaited(self, request: Request) -> str | None:
        """The name of the program that a request waits for; None: the measured streams run."""
        return None if request.request_id.startswith("stream") else "program"


class Everywhere:
    """A KV connector that claims to have every block of requests with parameters, and never
    delivers one."""

    def source(self, wire: WireRequest) -> str | None:
        return None if wire.kv_transfer is None else ""

    def holds(self, key: bytes, source: str) -> bool:
        return True

    def lost(self, key: bytes, source: str) -> None:
        pass

    def forget(self, key: bytes) -> None:
        pass

    def finished(self, wire: WireRequest, num_tokens: int) -> Mapping[str, Any]:
        return {}

    def reset(self) -> None:
        pass


class Kind(NamedTuple):
    """What requests wait for: builders of the streams' and the waiting requests' settings."""

    waiting: Callable[[int], dict[str, Any]]
    stream: Mapping[str, Any] = {}
    schedule: Mapping[str, Any] = {}
    gates: Sequence[MakeGate] = ()
    prompt: int = 2 * BLOCK_SIZE  # tokens that those that wait share
    with_prefix: bool = False  # a long prompt runs that begins as theirs do
    fetches: bool = False
    families: Sequence[str] = tuple(FAMILIES)
    most: int = 1_000_000  # requests: what they keep of long prompts must fit the memory


def image(number: int) -> dict[str, Any]:
    """An image that fills the encoder cache, held by the streams until they end."""
    grid = (1, 8, 8)
    return {"media": [MediaSpan(0, IMAGE, f"image {number}", "audio", grid, grid)]}


def grammar(text: str) -> dict[str, Any]:
    """A grammar that is still compiling."""
    return {"sampling": RowSampling(grammar=GrammarSpec(kind="regex", text=text))}


grammars: Sequence[MakeGate] = (partial(GrammarReady, lambda spec: EndlessCompilation()),)
lora: Mapping[str, Any] = {"max_loras": 1}
KINDS: Mapping[str, Kind] = {
    "a row": Kind(lambda number: {}, schedule={"max_num_seqs": STREAMS}),
    "an adapter's slot": Kind(lambda number: {"adapter": "b"}, {"adapter": "a"}, lora),
    "slots of as many adapters": Kind(
        lambda number: {"adapter": f"b{number}"}, {"adapter": "a"}, lora
    ),
    "a grammar": Kind(lambda number: grammar("x"), gates=grammars),
    "a program": Kind(lambda number: {}, gates=[NeverMade]),
    "room for images": Kind(image, image(-1), {"encoder_tokens": IMAGE}),
    "the states of a prefix": Kind(
        lambda number: {},
        with_prefix=True,
        prompt=PREFIX,
        families=["full and recurrent"],
        # So that there is room for others beside the prefix.
        schedule={
            "max_num_batched_tokens": STREAMS + 2 * CHUNK,
            "long_prefill_token_threshold": CHUNK,
        },
        most=10_000,
    ),
    "blocks from elsewhere": Kind(
        lambda number: {"kv_transfer": {}}, fetches=True, families=["full"]
    ),
}


class WaitingWork:
    """A scheduler with decoding streams and waiting requests."""

    def __init__(self, kind: Kind, family: str, waiting: int) -> None:
        groups = FAMILIES[family]
        self._numbers = count()
        config = CacheConfig(groups, BLOCK_SIZE, (8192,) * len(groups))
        schedule: dict[str, Any] = {
            "max_num_seqs": 2 * STREAMS, "max_num_batched_tokens": CHUNK + STREAMS,
            "max_model_len": 3 * PREFIX, "prefill_tile": 1, **kind.schedule,
        }  # fmt: skip
        cache = CacheCoordinator(config)
        transfers = TieredTransfers(cache, (512,), 8, Everywhere()) if kind.fetches else None
        self.scheduler = Scheduler(
            ScheduleConfig(**schedule), cache, gates=kind.gates, transfers=transfers
        )
        for number in range(STREAMS):
            self._add(f"stream {number}", [number] * BLOCK_SIZE, 2 * PREFIX, kind.stream)
        while self.scheduler.num_waiting:
            self.step()
        shared = list(range(kind.prompt))
        if kind.with_prefix:
            self._add("stream of a prefix", shared, 1, {})
            self.step()
        for number in range(waiting):
            own = [*shared, number]
            prompt = own if kind.with_prefix else [STREAMS + number % 1000] * kind.prompt
            self._add(f"waiting {number}", prompt, 4, kind.waiting(number))
        if not kind.with_prefix:
            self._settle()

    def step(self) -> None:
        """Schedule and commit one step."""
        plan = self.scheduler.schedule()
        assert plan is not None
        sampled = int(np.count_nonzero(plan.entries.wants_tokens))
        self.scheduler.commit(plan, StepOutput(np.full((sampled, 1), 7, np.int32)))

    def _settle(self) -> None:
        """Run steps until no more requests become parked."""
        parked = -1
        while parked != (parked := self.scheduler._requests.waiting.num_parked):
            self.step()

    def _add(self, name: str, prompt: list[int], most: int, more: Mapping[str, Any]) -> None:
        settings: dict[str, Any] = {"sampling": RowSampling(), **more}
        self.scheduler.add(
            WireRequest(request_id=name, prompt_token_ids=prompt, max_tokens=most, **settings)
        )


def calls(work: WaitingWork) -> float:
    """Number of Python function calls in a step."""
    made = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal made
        made += event == "call"

    sys.setprofile(note)
    try:
        for _ in range(COUNTED):
            work.step()
    finally:
        sys.setprofile(None)
    return made / COUNTED


def measure(kind: str, family: str, waiting: int, steps: int = STEPS) -> dict[str, Any]:
    """Measure one case."""
    work, seconds = WaitingWork(KINDS[kind], family, waiting), list[float]()
    for _ in range(steps):
        began = time.perf_counter()
        work.step()
        seconds.append(time.perf_counter() - began)
    counted = calls(work)
    assert work.scheduler.num_waiting == waiting, "they wait to the end"
    return {
        "waits_for": kind, "family": family, "waiting": waiting,
        "step_us": round(statistics.median(seconds) * 1e6, 1),
        "worst_us": round(max(seconds) * 1e6, 1), "calls": counted,
    }  # fmt: skip


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure every kind and cache family at each number of waiting requests."""
    cases = []
    for name, kind in KINDS.items():
        for family in kind.families:
            for waiting in (one for one in args.counts if one <= kind.most):
                cases.append(measure(name, family, waiting))
                print(*cases[-1].values(), sep="  ", flush=True)
    return {"cases": cases}


FLAGS = {"--counts": {"type": int, "nargs": "+", "default": [0, 1000, 10_000, 100_000]}}
main = Benchmark("waiting", __doc__, FLAGS, run).main


if __name__ == "__main__":
    raise SystemExit(main())
