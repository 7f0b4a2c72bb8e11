"""`jengine simulate`: simulates replicas on a virtual clock with the real scheduler."""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jengine.bench.serve.settings import objectives_of
from jengine.cli.flags import engine_arguments
from jengine.cli.interrupts import interrupts_end_the_process
from jengine.cli.parser import Parser
from jengine.cli.simulate_flags import (
    TRACE_FLAGS,
    add_simulation_flags,
    check,
    command_line,
    failures_of,
)
from jengine.cli.terminal import Terminal
from jengine.models.reading.published import PUBLISHED

if TYPE_CHECKING:
    from jengine.cli.main import OpenLLM

USAGE = "[MODEL] [flags]"
EXAMPLES = f"""\
MODEL is a folder with a config.json (weights are not read), or one of these shapes:
  {", ".join(PUBLISHED)}
Step times are those of jengine plan, or with --table those that were measured.

examples:
  jengine simulate llama-8b --device h100 --replicas 8 --rate 60 --requests 20000
  jengine simulate llama-8b --replicas 8 --turns 6 --routing load --html simulation.html
  jengine simulate llama-70b --tp 8 --replicas 4 --prefill-replicas 8 --prefill-tp 4 --rate 40
  jengine simulate llama-8b --replicas 8 --fail 2@60-120 --goodput ttft:1000 tpot:40
  jengine simulate --table steps.json --csv requests.csv --json
"""


def add_flags(parser: Parser) -> None:
    parser.add_argument("model", metavar="MODEL", nargs="?", help="a model folder, or a shape")
    add_simulation_flags(parser)


def run(arguments: argparse.Namespace, terminal: Terminal, open_llm: OpenLLM) -> int:
    check(arguments)
    failures = failures_of(arguments)
    settings = {} if arguments.model is None else engine_arguments(arguments)
    settings.pop("seed", None)  # that of the trace, by the same name
    objectives = objectives_of(arguments.goodput)
    with interrupts_end_the_process():
        # Importing jax takes a second: after the flags have been checked.
        room = importlib.import_module("jengine.capacity.simulation.simulate")
        beside = {Path(name).stem: room.read(Path(name)) for name in arguments.beside}
        scenario = scenario_of(arguments, settings, failures)
        command = command_line(arguments, settings)
        result = room.simulate(scenario, command, objectives, arguments.price)
        report = importlib.import_module("jengine.capacity.simulation.report")
    terminal.say(json.dumps(result, indent=1) if arguments.json else report.as_text(result))
    if arguments.output_json:
        text = json.dumps(result, indent=1) + "\n"
        Path(arguments.output_json).write_text(text, encoding="utf-8")
    if arguments.html:
        name = Path(arguments.output_json or "simulation").stem
        page = importlib.import_module("jengine.capacity.simulation.page").page(
            {name: result, **beside}
        )
        Path(arguments.html).write_text(page, encoding="utf-8")
    return 0


def scenario_of(
    arguments: argparse.Namespace,
    settings: dict[str, Any],
    failures: list[tuple[int, float, float | None, int]],
) -> Any:
    room = importlib.import_module("jengine.capacity.simulation.scenario")
    trace = importlib.import_module("jengine.capacity.simulation.trace")
    given = vars(arguments)

    def pool(name: str, replicas: int, tp: int, ep: int) -> Any:
        return room.PoolPlan(
            replicas, arguments.model or "", arguments.table, settings, arguments.device,
            tp, arguments.pp, arguments.network, ep, name,
        )  # fmt: skip

    pools = [pool("replicas", arguments.replicas, arguments.tp, arguments.ep)]
    if arguments.prefill_replicas:
        prefill_tp = arguments.prefill_tp or arguments.tp
        pools = [
            pool("prefill replicas", arguments.prefill_replicas, prefill_tp, arguments.prefill_ep),
            pool("decode replicas", arguments.replicas, arguments.tp, arguments.ep),
        ]
    return room.Scenario(
        pools,
        trace.TraceSettings(**{name: given[name] for name in TRACE_FLAGS}),
        csv=arguments.csv,
        routing=arguments.routing,
        link=arguments.link,
        host_gb=arguments.host_memory,
        copy_rate=arguments.copy_rate,
        failures=[room.Failure(*failure) for failure in failures],
        groups=arguments.groups,
    )
