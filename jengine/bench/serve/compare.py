"""Runs the same load on a server and an opponent, alternating: A B A B.

In: settings, how to open the server and the opponent. Out: the server's result, with the
opponent's speed and their ratio. All requests are greedy and ignore the end token, so the amount of
work is fixed.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from jengine.bench.against import PeerProcess
from jengine.bench.serve.figures import figures
from jengine.bench.serve.measure import Target, about, remarks, send
from jengine.bench.serve.samples import Conversation, conversations
from jengine.bench.serve.settings import LoadSettings
from jengine.bench.serve.vocabulary import vocabulary_of
from jengine.client.errors import ServerFailed
from jengine.errors import ConfigError


class LoadOpponent(Protocol):
    """The server or engine that a load is compared with."""

    version: str

    def run(self) -> tuple[float, int]:
        """Run the work once; returns (seconds, generated tokens)."""
        ...


# Opens an opponent for the work.
Challenge = Callable[[list[Conversation]], AbstractContextManager[LoadOpponent]]


class ServerUnderLoad:
    """A server as one side of a comparison."""

    def __init__(self, settings: LoadSettings, work: list[Conversation]) -> None:
        self.settings, self.work = settings, work
        self.target = Target(settings)
        self.version = self.target.version
        self.last: dict[str, Any] = {}  # the figures of the last run

    def run(self) -> tuple[float, int]:
        """Run the work once; returns (seconds, generated tokens). Raises if a request fails."""
        load = asyncio.run(send(self.settings, self.target, self.work))
        found = figures(load, self.settings)
        if found["failed"]:
            raise ServerFailed(f"{found['failed']} requests failed: {found['first_errors'][0]}")
        self.last = found
        return found["duration"], found["total_output_tokens"]


@dataclass(frozen=True)
class EngineSettings:
    """Input of the program in engine_child.py."""

    model: str
    engine: dict[str, Any]
    trace: str


def fixed_work(settings: LoadSettings) -> LoadSettings:
    """The settings for a comparison: greedy, with fixed output lengths."""
    if settings.dataset_name == "multi_turn" and settings.trace is None:
        raise ConfigError("--against: expected a dataset of single turns, not multi_turn.")
    return replace(settings, sampling={**settings.sampling, "temperature": 0.0}, ignore_eos=True)


@contextmanager
def engine(
    model: str, settings: dict[str, Any], work: list[Conversation]
) -> Iterator[LoadOpponent]:
    """The engine in a process without an HTTP server, as opponent."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "work.jsonl"
        lines = [{"prompt": turn.prompt, "max_tokens": turn.output_len} for (turn,) in work]
        trace.write_text("".join(json.dumps(one) + "\n" for one in lines), encoding="utf-8")
        told = EngineSettings(model, settings, str(trace))
        command = [sys.executable, "-m", "jengine.bench.serve.engine_child"]
        with PeerProcess("engine", command, told) as found:
            yield found


@contextmanager
def other_server(
    settings: LoadSettings, opened: AbstractContextManager[str], work: list[Conversation]
) -> Iterator[LoadOpponent]:
    """Another server under the same load, as opponent."""
    with opened as url:
        named = replace(settings, base_url=url, model_name=None)
        yield ServerUnderLoad(named, work)


def compare(
    settings: LoadSettings,
    command: str,
    repeats: int,
    challenge: Challenge,
    note: Callable[[str], object],
) -> dict[str, Any]:
    """One warm-up run each, then `repeats` alternating runs; the median counts."""
    ours_target = Target(settings)
    vocabulary = vocabulary_of(settings.tokenizer, ours_target.root)
    work = conversations(settings, vocabulary)
    for line in remarks(settings, ours_target, vocabulary):
        note(line)
    ours = ServerUnderLoad(settings, work)
    with challenge(work) as theirs:
        ours.run()
        theirs.run()
        pairs = [(ours.run(), theirs.run()) for _ in range(repeats)]
    mine, other = (summary([pair[side] for pair in pairs]) for side in (0, 1))
    known = about(settings, ours_target, vocabulary, work)
    return {
        "command": command,
        **known,
        **ours.last,
        **mine,
        "peer": {"engine": theirs.version, **other},
        "ratio": round(mine["output_tok_s"] / other["output_tok_s"], 3),
    }


def summary(runs: list[tuple[float, int]]) -> dict[str, Any]:
    """Seconds of all runs, and throughput of the median run."""
    seconds = statistics.median(seconds for seconds, _ in runs)
    return {
        "seconds": [round(one, 3) for one, _ in runs],
        "generated": runs[0][1],
        "output_tok_s": round(runs[0][1] / seconds, 1),
    }
