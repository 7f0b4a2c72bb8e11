"""Proof of a simulation: the same trace on an engine of this machine, and simulated by its steps.

python -m jengine.capacity.simulation.proof MODEL [--rate 4 ...]: measures the table of steps, runs
the trace in real time, simulates it, and prints both. The trace comes in parts, with rounds of the
table before, between and after them: what else runs on the machine is then in the times of both.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from jengine.api.llm import LLM
from jengine.bench.frame import Benchmark
from jengine.bench.step_table import Rounds
from jengine.capacity.simulation.fleet import Fleet
from jengine.capacity.simulation.history import COLUMNS, History
from jengine.capacity.simulation.journeys import Journey, noted, wire_of
from jengine.capacity.simulation.replica import Clock, Replica
from jengine.capacity.simulation.replica_pool import ReplicaPool
from jengine.capacity.simulation.results import figures, group_result
from jengine.capacity.simulation.table_times import StepTable, table_kind
from jengine.capacity.simulation.trace import SyntheticTrace, TraceSettings
from jengine.engine.core import EngineCore
from jengine.errors import ConfigError
from jengine.request import WireRequest

WARM_UP = 8  # requests before the measured ones
LATEST = 5e-3  # seconds that a sleep may take longer
ENOUGH = 0.1  # the difference that is accepted


def measured(core: EngineCore, settings: TraceSettings) -> History:
    """Run a trace in real time, by the engine's own core without texts."""
    history, live = History(), dict[str, Journey]()
    waiting = sorted(SyntheticTrace(settings).arrivals(), key=lambda one: one[0], reverse=True)
    wires: list[tuple[float, Journey, WireRequest]] = []
    for at, ask in waiting:
        journey = Journey(f"proof-{ask.name}", ask, at)
        wires.append((at, journey, wire_of(journey, is_last=True)))
    began = time.perf_counter()
    while wires or live:
        now = time.perf_counter() - began
        while wires and wires[-1][0] <= now:
            _, journey, wire = wires.pop()
            live[journey.name] = journey
            core.add(wire)
        if not core.has_work:
            time.sleep(max(wires[-1][0] - now - LATEST, 0.0))
            continue  # and again without sleep, which may end too late
        deltas = core.step()
        ends = [time.perf_counter() - began]
        for journey in noted(deltas, ends, live, history.gaps):
            del live[journey.name]
            history.end(
                journey.arrived, journey.first, journey.last, len(journey.ask.prompt),
                journey.cached, len(journey.answer),
            )  # fmt: skip
    return history


def simulated(table: StepTable, settings: TraceSettings) -> History:
    """Simulate the trace with the measured step times."""
    clock = Clock()
    pool = ReplicaPool("replicas", [Replica(table_kind(table), clock)], "turns")
    return Fleet([pool], clock, SyntheticTrace(settings)).run()


def in_turn(histories: Sequence[History]) -> History:
    """Concatenate histories in time: each begins when the one before has ended."""
    whole, began = History(), 0.0
    for one in histories:
        columns = zip(*(getattr(one, name) for name in COLUMNS), strict=True)
        for arrived, first, ended, *tokens in columns:
            whole.end(began + arrived, began + first, began + ended, *tokens)
        one.gaps.flush()
        whole.gaps.counts += one.gaps.counts
        began = max(whole.ended)
    return whole


def compared(real: dict[str, Any], made_up: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the compared figures of both histories, and their relative differences."""
    rows = []
    for name, pick in (
        ("output tokens/s", lambda one: one["output_throughput"]),
        ("TTFT p50, ms", lambda one: one["latency_ms"]["ttft"]["p50"]),
        ("ITL p50, ms", lambda one: one["latency_ms"]["itl"]["p50"]),
    ):
        both = pick(real), pick(made_up)
        rows.append({"figure": name, "measured": both[0], "simulated": both[1],
                     "difference": both[1] / both[0] - 1})  # fmt: skip
    return rows


def parts_of(settings: TraceSettings, parts: int) -> list[TraceSettings]:
    """Traces that have a trace's requests between them."""
    sizes = [settings.requests // parts + (i < settings.requests % parts) for i in range(parts)]
    return [
        replace(settings, requests=size, seed=settings.seed + number)
        for number, size in enumerate(sizes)
    ]


def proof(llm: LLM, settings: TraceSettings, parts: int) -> dict[str, Any]:
    """Run a trace on the engine and in the simulation, and compare latencies and throughput."""
    core = llm.engine.in_process.core
    assert isinstance(core, EngineCore), "one engine in this process, without replicas"
    rounds, traces = Rounds(llm), parts_of(settings, parts)
    measured(core, replace(settings, requests=WARM_UP, seed=settings.seed + parts))
    histories = []
    for trace in traces:
        rounds.another()
        histories.append(measured(core, trace))
        core.reset_prefix_cache()
    rounds.another()
    found = {"model": str(llm.engine.folder), **rounds.table()}
    table = msgspec.json.decode(json.dumps(found).encode(), type=StepTable)
    real = figures([group_result(in_turn(histories))], {}, None)
    told = in_turn([simulated(table, trace) for trace in traces])
    made_up = figures([group_result(told)], {}, None)
    rows = compared(real, made_up)
    apart = [row["figure"] for row in rows if abs(row["difference"]) > ENOUGH]
    return {
        "bench": "simulation proof",
        "trace": msgspec.to_builtins(settings),
        "parts": parts,
        "compared": rows,
        "failed": apart,
        "within": not apart,
        "measured": real,
        "simulated": made_up,
        "table": found,
    }


def printed(result: dict[str, Any]) -> str:
    """The comparison as a table."""
    lines = [f"{'':<18}{'measured':>12}{'simulated':>12}{'difference':>12}"]
    lines += [
        f"{row['figure']:<18}{row['measured']:>12,.2f}{row['simulated']:>12,.2f}"
        f"{row['difference']:>+12.1%}"
        for row in result["compared"]
    ]
    return "\n".join([*lines, f"within {ENOUGH:.0%}: {'yes' if result['within'] else 'no'}"])


def run(given: argparse.Namespace) -> dict[str, Any]:
    """The proof of an engine with these limits."""
    if not 1 <= given.parts <= given.requests:
        raise ConfigError(f"--parts {given.parts}: expected 1 to {given.requests}, the requests.")
    settings = {"max_num_seqs": given.max_num_seqs, "max_model_len": given.max_model_len}
    with LLM(
        given.model, **settings, skip_tokenizer_init=True, compilation_config={"wait_for": "all"}
    ) as llm:
        trace = TraceSettings(
            requests=given.requests, rate=given.rate, input_len=given.input_len,
            output_len=given.output_len, spread=given.spread, longest=given.max_model_len,
            vocab_size=llm.engine.model.vocab_size,
        )  # fmt: skip
        return proof(llm, trace, given.parts)


FLAGS = {
    "model": {"help": "a model folder, or demo"},
    "--rate": {"type": float, "default": 4.0, "help": "requests per second [4]"},
    "--requests": 120,
    "--input-len": {"type": int, "default": 128, "help": "mean prompt tokens [128]"},
    "--output-len": {"type": int, "default": 48, "help": "mean answer tokens [48]"},
    "--spread": {"type": float, "default": 0.5, "help": "of lengths over mean [0.5]"},
    "--max-num-seqs": 16,
    "--max-model-len": 1024,
    "--parts": {"type": int, "default": 3, "help": "of the trace [3]"},
}
main = Benchmark("proof", __doc__, FLAGS, run, printed, "jengine.capacity.simulation").main


if __name__ == "__main__":
    raise SystemExit(main())
