"""Whether running streams stall while other requests use a sampling feature for the first time.

    python -m jengine.bench.first_uses [MODEL] [--streams N] [--cold] [--output-json FILE]

A few streams decode all the time. Beside them each feature is asked for twice at each prompt size:
the seconds of each use, and the longest gap between two tokens of a stream meanwhile. The second
use shows what the prompt itself costs the streams. Once with the engine in this process, and once
behind HTTP. `--cold` begins before warm-up has ended.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jengine
from jengine.bench.frame import Benchmark
from jengine.bench.marathon.load import FEATURES
from jengine.bench.marathon.server import ServerProcess
from jengine.client.address import Address
from jengine.client.errors import ServerBusy, ServerFailed
from jengine.client.server import Server
from jengine.structured_outputs import StructuredOutputsParams

PROMPTS = (16, 200)  # tokens
ANSWER, STREAM = 4, 200  # tokens
# Over this many median gaps a stream is said to have stood still.
MOST = 5.0
# What a server's log says when no program is to come.
WARM = "programs compiled while serving"
SETTLE = 0.5  # seconds for which streams run before anything is asked for

# A prompt's ids, the most tokens of an answer, and sampling: yields once per token or chunk.
Ask = Callable[[list[int], int, dict[str, Any]], Iterator[object]]


class FirstUse(NamedTuple):
    """First and second use of a feature."""

    feature: str
    prompt: int
    first_s: float
    second_s: float
    first_gap_s: float  # the longest of any stream during the first use
    second_gap_s: float


class Streams:
    """Requests that decode continuously, with their inter-token gaps."""

    def __init__(self, ask: Ask, count: int) -> None:
        self._ask = ask
        self._stopped = threading.Event()
        self.gaps: list[tuple[float, float]] = []  # when one ended, and its seconds
        self._last = [0.0] * count  # when each stream had a token
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(count)]

    def _run(self, number: int) -> None:
        while not self._stopped.is_set():
            before = None
            for _ in self._ask([7 + number] * PROMPTS[0], STREAM, {"temperature": 0}):
                now = time.perf_counter()
                if before is not None:
                    self.gaps.append((now, now - before))
                before = self._last[number] = now

    @contextmanager
    def running(self) -> Iterator[Streams]:
        """Run the streams inside the block."""
        for thread in self._threads:
            thread.start()
        try:
            time.sleep(SETTLE)
            yield self
        finally:
            self._stopped.set()
            for thread in self._threads:
                thread.join()

    def longest_since(self, began: float) -> float:
        """Longest inter-token gap since `began`, including gaps still open then."""
        asked = time.perf_counter()
        while any(last < asked for last in self._last) and all(t.is_alive() for t in self._threads):
            time.sleep(0.001)
        return max((gap for end, gap in list(self.gaps) if end >= began), default=0.0)


def measure(ask: Ask, streams: int, but: Sequence[str] = ()) -> dict[str, Any]:
    """Measure all features except `but`, at all prompt sizes, beside this many streams."""
    uses = list[FirstUse]()
    with Streams(ask, streams).running() as beside:
        for size in PROMPTS:
            for number, (name, sampling) in enumerate(FEATURES.items()):
                if name in but:
                    continue
                seconds, gaps = list[float](), list[float]()
                for _ in range(2):
                    began = time.perf_counter()
                    seconds.append(timed(ask, [11 + number] * size, sampling))
                    gaps.append(beside.longest_since(began))
                uses.append(FirstUse(name, size, *seconds, *gaps))
    median = statistics.median(gap for _, gap in beside.gaps)
    longest = max(one.first_gap_s for one in uses)
    return {
        "gaps": len(beside.gaps),
        "median_gap_s": median,
        "longest_gap_s": longest,
        "longest_second_gap_s": max(one.second_gap_s for one in uses),
        "longest_over_median": longest / median,
        "uses": [one._asdict() for one in uses],
    }


def timed(ask: Ask, prompt: list[int], sampling: dict[str, Any]) -> float:
    """Seconds of one request."""
    began = time.perf_counter()
    for _ in ask(prompt, ANSWER, sampling):
        pass
    return time.perf_counter() - began


@contextmanager
def in_process(model: str, *, cold: bool) -> Iterator[Ask]:
    """Measure with an engine in this process."""
    with jengine.LLM(model, enable_prefix_caching=False) as llm:
        if not cold:
            llm.wait_until_warm()

        def ask(prompt: list[int], most: int, sampling: dict[str, Any]) -> Iterator[object]:
            given = dict(sampling)
            if rules := given.pop("structured_outputs", None):
                given["structured_outputs"] = StructuredOutputsParams(**rules)
            ignore_eos = "structured_outputs" not in given
            params = jengine.SamplingParams(**given, max_tokens=most, ignore_eos=ignore_eos)
            return llm.stream([{"prompt_token_ids": prompt}], params)

        yield ask


@contextmanager
def over_http(model: str, *, cold: bool) -> Iterator[Ask]:
    """Measure through a server in its own processes."""
    with tempfile.TemporaryDirectory() as folder:
        process = ServerProcess(model, ["--no-enable-prefix-caching"], Path(folder, "log"))
        process.start()
        try:
            server = Server(Address.of(f"http://127.0.0.1:{process.port}"))
            wait_for(server, process, cold=cold)
            name = server.models()[0]["id"]

            def ask(prompt: list[int], most: int, sampling: dict[str, Any]) -> Iterator[object]:
                ignore_eos = "structured_outputs" not in sampling
                body = {"model": name, "prompt": prompt, "max_tokens": most, "stream": True,
                        "ignore_eos": ignore_eos, **sampling}  # fmt: skip
                return server.stream("/v1/completions", body)

            yield ask
        finally:
            process.kill()


def wait_for(server: Server, process: ServerProcess, *, cold: bool, seconds: float = 600) -> None:
    """Wait until the server is up and, unless `cold`, warm-up has finished."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.is_running:
        try:
            server.text("/health")
            if cold or WARM in process.log_text():
                return
        except (ServerBusy, ServerFailed):
            pass  # it loads, or does not listen yet
        time.sleep(0.2)
    raise ServerFailed(f"the server is not ready: {process.log_text()[-2000:]}")


# What a way cannot stream.
NOT_THERE = {"over HTTP": ("prompt_logprobs",)}
WAYS = {"in process": in_process, "over HTTP": over_http}


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure in process, then over HTTP; prints each table."""
    found: dict[str, Any] = {}
    for name in args.ways:
        with WAYS[name](args.model, cold=args.cold) as ask:
            found[name] = measure(ask, args.streams, NOT_THERE.get(name, ()))
        print(shown(name, found[name]))
    return {
        "model": Path(args.model).name, "streams": args.streams, "cold": args.cold, "most": MOST,
        "ways": found,
    }  # fmt: skip


def shown(name: str, way: dict[str, Any]) -> str:
    """The table of one measurement."""
    median = way["median_gap_s"]
    lines = [f"{name}: median gap {median * 1e3:.2f} ms, longest {way['longest_over_median']:.1f}"
             " medians"]  # fmt: skip
    lines += [
        f"{one['feature']:>20} {one['prompt']:4d} tokens: {one['first_s']:6.3f} s, then "
        f"{one['second_s']:6.3f} s; longest gap {one['first_gap_s'] / median:6.1f} medians, then "
        f"{one['second_gap_s'] / median:6.1f}"
        for one in way["uses"]
    ]
    return "\n".join(lines)


FLAGS = {
    "model": {"nargs": "?", "default": "demo"},
    "--streams": 4,
    "--cold": {"action": "store_true", "help": "begin before warm-up has ended"},
    "--ways": {"nargs": "+", "choices": list(WAYS), "default": list(WAYS)},
}
main = Benchmark("first_uses", __doc__, FLAGS, run).main


if __name__ == "__main__":
    raise SystemExit(main())
