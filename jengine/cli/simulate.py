"""`jengine simulate`: simulates replicas on a virtual clock with the real scheduler."""

from __future__ import annotations

import argparse
import importlib
import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jengine.assembly.settings.args import settings_of
from jengine.assembly.settings.flags import flag_of
from jengine.bench.serve.settings import OBJECTIVES, objectives_of
from jengine.capacity.accelerators import ACCELERATORS
from jengine.cli.flags import add_engine_flags, check_file, engine_arguments, flag_words
from jengine.cli.interrupts import interrupts_end_the_process
from jengine.cli.parser import Parser
from jengine.cli.terminal import Terminal
from jengine.errors import ConfigError
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
  jengine simulate llama-70b --tp 8 --dcp 2 --replicas 8 --mtbf 24 --repair 600
  jengine simulate deepseek-v3 --replicas 64 --ep 64 --balancedness 0.8 --rate 200
  jengine simulate llama-8b --replicas 8 --min-replicas 1 --scale-target 64 --rate 30
  jengine simulate --table steps.json --csv requests.csv --json
"""


def add_flags(parser: Parser) -> None:
    parser.add_argument("model", metavar="MODEL", nargs="?", help="a model folder, or a shape")
    add_simulation_flags(parser)


def run(arguments: argparse.Namespace, terminal: Terminal, open_llm: OpenLLM) -> int:
    check(arguments)
    failures = failures_of(arguments)
    settings = {} if arguments.model is None else engine_arguments(arguments, ENGINE_FLAGS)
    objectives = objectives_of(arguments.goodput)
    with interrupts_end_the_process():
        # Importing jax takes a second: after the flags have been checked.
        room = importlib.import_module("jengine.capacity.simulation.simulate")
        beside = {Path(name).stem: room.read(Path(name)) for name in arguments.beside}
        scenario = scenario_of(arguments, settings, failures)
        command = command_line(arguments, settings)
        result = room.simulate(scenario, command, objectives, arguments.price)
        report = importlib.import_module("jengine.capacity.simulation.page")
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

    def pool(name: str, replicas: int, **layout: int) -> Any:
        return room.PoolPlan(
            replicas=replicas, model=arguments.model or "", table=arguments.table,
            settings=settings, device=arguments.device, pp=arguments.pp, network=arguments.network,
            balancedness=arguments.balancedness if layout["ep"] else 1.0, name=name, **layout,
        )  # fmt: skip

    layout = {"tp": arguments.tp, "ep": arguments.ep, "dcp": arguments.dcp}
    pools = [pool("replicas", arguments.replicas, pcp=arguments.pcp, **layout)]
    if arguments.prefill_replicas:
        prefill = {"tp": arguments.prefill_tp or arguments.tp, "ep": arguments.prefill_ep}
        pools = [
            pool("prefill replicas", arguments.prefill_replicas, pcp=arguments.pcp, **prefill),
            pool("decode replicas", arguments.replicas, **layout),
        ]
    return room.Scenario(
        pools,
        trace.TraceSettings(**{name: given[name] for name in TRACE_FLAGS}),
        csv=arguments.csv,
        routing=arguments.routing,
        link=arguments.link,
        host_gb=arguments.host_memory,
        copy_rate=arguments.copy_rate,
        failures=[room.ReplicaFailure(*failure) for failure in failures],
        mtbf=arguments.mtbf,
        repair=arguments.repair,
        autoscaling=autoscaling_of(arguments),
        groups=arguments.groups,
    )


def autoscaling_of(arguments: argparse.Namespace) -> Any:
    if not arguments.min_replicas:
        return None
    room = importlib.import_module("jengine.capacity.simulation.autoscaling")
    return room.Autoscaling(
        arguments.min_replicas, arguments.scale_target, arguments.scale_start,
        arguments.scale_down_after,
    )  # fmt: skip


ENGINE_FLAGS = settings_of("simulate")
ROUTINGS = ("prefix", "load", "turns")


class Flag(NamedTuple):
    """Type, default, unit or choices, and help of a flag."""

    kind: type
    default: Any
    unit: str | tuple[str, ...]
    words: str
    several: bool = False


REPLICA_FLAGS = {
    "replicas": Flag(int, 1, "N", "replicas"),
    "table": Flag(str, None, "FILE", "measured steps of an engine, in place of a MODEL's by "
                  "jengine plan; jengine bench growth --step-table writes them"),
    "device": Flag(str, "h200", tuple(sorted(ACCELERATORS)), "what a MODEL runs on"),
    "tp": Flag(int, 1, "N", "devices per layer"),
    "pp": Flag(int, 1, "N", "pipeline stages"),
    "ep": Flag(int, 0, "N", "devices of all replicas that share the experts, each with some whole"),
    "prefill_ep": Flag(int, 0, "N", "the same of the prefill replicas"),
    "dcp": Flag(int, 1, "N", "of the --tp devices, those that divide the cached tokens of each "
                "request: decode context parallelism; not of prefill replicas"),
    "pcp": Flag(int, 1, "N", "groups of --tp devices, each with all weights, that divide the "
                "tokens of a step: prefill context parallelism; where there are prefill replicas, "
                "of these alone"),
    "balancedness": Flag(float, 1.0, "SHARE", "mean load of the --ep devices' experts over that "
                         "of the busiest, for which all wait; --eplb-config.log_balancedness true "
                         "measures it"),
    "network": Flag(float, 400.0, "GBIT", "network port of each device, Gbit/s"),
    "routing": Flag(str, "prefix", ROUTINGS, "by cached prefix and load, by load, or in turns"),
    "groups": Flag(int, 1, "N", "routers, each with its share of requests and replicas, and "
                   "simulated in a process of its own"),
    "prefill_replicas": Flag(int, 0, "N", "replicas that run prompts only; --replicas then only "
                             "decode"),
    "prefill_tp": Flag(int, None, "N", "devices per layer of these"),
    "link": Flag(float, 50.0, "GB/S", "at which one of these sends keys and values"),
    "host_memory": Flag(float, 0.0, "GB", "of each replica, for blocks that leave its cache"),
    "copy_rate": Flag(float, 50.0, "GB/S", "between a replica's devices and host memory"),
    "fail": Flag(str, [], "REPLICA@SECONDS[-SECONDS]", "a replica that dies, and when it is back; "
                 "prefill:0@60 is one of the prefill replicas", several=True),
    "mtbf": Flag(float, 0.0, "HOURS", "after which each replica dies, on average, at random; 0: "
                 "none does"),
    "repair": Flag(float, 300.0, "SECONDS", "until it is back, with an empty cache"),
    "min_replicas": Flag(int, 0, "N", "replicas at the start, and at least: with the requests in "
                         "progress there are up to --replicas; 0: always these"),
    "scale_target": Flag(float, 32.0, "N", "requests in progress for each replica that is wanted"),
    "scale_start": Flag(float, 60.0, "SECONDS", "until a replica that is started takes requests"),
    "scale_down_after": Flag(float, 300.0, "SECONDS", "for which fewer must be wanted before one "
                             "finishes what it has and ends"),
}  # fmt: skip
TRACE_FLAGS = {
    "requests": Flag(int, 10_000, "N", "requests"),
    "rate": Flag(float, 10.0, "N", "requests per second, of all replicas together"),
    "burstiness": Flag(float, 1.0, "N", "shape of intervals: 1 is a Poisson process, less comes "
                       "in bursts"),
    "input_len": Flag(int, 512, "N", "prompt tokens, beyond those of a shared prefix"),
    "output_len": Flag(int, 128, "N", "tokens of an answer"),
    "spread": Flag(float, 0.0, "N", "standard deviation of lengths over their mean"),
    "prefixes": Flag(int, 0, "N", "prompts begin with one of so many texts"),
    "prefix_len": Flag(int, 0, "N", "tokens of each of these texts"),
    "turns": Flag(int, 1, "N", "turns of a conversation, each of which repeats those before"),
    "think": Flag(float, 5.0, "SECONDS", "between an answer and the next turn, on average"),
    "seed": Flag(int, 0, "N", "of times, lengths and contents"),
}  # fmt: skip
OTHER_FLAGS = {
    "csv": Flag(str, None, "FILE", "requests of a file in place of these: arrival, prompt_tokens, "
                "output_tokens, and if wanted prefix, prefix_tokens, conversation"),
    "goodput": Flag(str, [], "METRIC:MS", f"objectives of a good request, as ttft:500, of "
                    f"{', '.join(OBJECTIVES)}", several=True),
    "price": Flag(float, None, "DOLLARS", "of one device for an hour"),
}  # fmt: skip
POSITIVE = (
    "requests", "rate", "burstiness", "input_len", "output_len", "turns", "replicas", "link",
    "copy_rate", "network", "repair", "scale_target",
)  # fmt: skip
AT_LEAST_0 = (
    "spread", "prefixes", "prefix_len", "think", "host_memory", "prefill_replicas", "mtbf",
    "min_replicas", "scale_start", "scale_down_after",
)  # fmt: skip
# Flags that a measured table determines.
OF_A_MODEL = (
    "device", "tp", "pp", "ep", "prefill_ep", "prefill_tp", "dcp", "pcp", "balancedness", "network",
)  # fmt: skip
FAIL = re.compile(r"(prefill:)?(\d+)@(\d+\.?\d*)(?:-(\d+\.?\d*))?")


def add_simulation_flags(parser: Parser) -> None:
    """Add simulation flags, and engine flags that capacity planning uses."""
    tables = (("replicas", REPLICA_FLAGS), ("requests", TRACE_FLAGS), ("results", OTHER_FLAGS))
    for title, flags in tables:
        group = parser.add_argument_group(title)
        for name, flag in flags.items():
            choices = None if isinstance(flag.unit, str) else flag.unit
            shown = "" if flag.default in (None, []) else f" [{flag.default}]"
            group.add_argument(
                flag_of(name),
                type=flag.kind,
                default=flag.default,
                choices=choices,
                metavar=flag.unit if choices is None else None,
                nargs="+" if flag.several else None,
                help=flag.words + shown,
            )
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print JSON")
    group.add_argument("--output-json", metavar="FILE", help="write JSON to this file as well")
    group.add_argument("--html", metavar="FILE", help="write a page with charts")
    group.add_argument(
        "--beside", nargs="+", default=[], metavar="FILE",
        help="results of --output-json to draw beside this one, up to two",
    )  # fmt: skip
    add_engine_flags(parser, only=ENGINE_FLAGS)


def check(arguments: argparse.Namespace) -> None:
    """Raise ConfigError for combinations that argparse accepts."""
    if (arguments.model is None) == (arguments.table is None):
        raise ConfigError("simulate: expected a MODEL, or --table with the steps of one.")
    given = [name for name in OF_A_MODEL if getattr(arguments, name) != REPLICA_FLAGS[name].default]
    if arguments.table and given:
        raise ConfigError(
            f"{flag_of(given[0])} with --table: steps were measured on the devices that they were. "
            "Give it with a MODEL, or leave it out."
        )
    if not 0 < arguments.balancedness <= 1:
        raise ConfigError(
            f"--balancedness {arguments.balancedness:g}: expected a share above 0 and up to 1, the "
            "mean load of a device over the highest."
        )
    if arguments.balancedness != 1 and not (arguments.ep or arguments.prefill_ep):
        raise ConfigError(
            f"--balancedness {arguments.balancedness:g}: expected --ep or --prefill-ep with it; "
            "devices that have a part of every expert are loaded alike."
        )
    if arguments.mtbf and arguments.fail:
        raise ConfigError("--mtbf with --fail: expected one of them, failures at random or given.")
    if arguments.repair != REPLICA_FLAGS["repair"].default and not arguments.mtbf:
        raise ConfigError("--repair without --mtbf: no replica dies at random. Give both.")
    check_autoscaling(arguments)
    for name in POSITIVE:
        value = getattr(arguments, name)
        if not value > 0:
            raise ConfigError(f"{flag_of(name)} {value:g}: expected more than 0.")
    for name in AT_LEAST_0:
        value = getattr(arguments, name)
        if value < 0:
            raise ConfigError(f"{flag_of(name)} {value:g}: expected 0 or more.")
    if len(arguments.beside) > 2:
        raise ConfigError("--beside: a page compares up to three results, so expected up to two.")
    for name in ("output_json", "html"):
        if file := getattr(arguments, name):
            check_file(flag_of(name), file)


def check_autoscaling(arguments: argparse.Namespace) -> None:
    """Raise ConfigError for flags that conflict with --min-replicas or need it."""
    others = ("prefill_replicas", "ep", "mtbf", "fail") if arguments.min_replicas else ()
    for name in others:
        if getattr(arguments, name):
            raise ConfigError(f"--min-replicas with {flag_of(name)}: expected one of them.")
    if arguments.min_replicas and arguments.groups > 1:
        raise ConfigError("--min-replicas with --groups: expected one router, which scales all.")
    for name in ("scale_target", "scale_start", "scale_down_after"):
        if not arguments.min_replicas and getattr(arguments, name) != REPLICA_FLAGS[name].default:
            raise ConfigError(f"{flag_of(name)} without --min-replicas: no replica comes or goes.")


def failures_of(arguments: argparse.Namespace) -> list[tuple[int, float, float | None, int]]:
    """Parse --fail: (replica, time of death, time of return, pool; 0 is the first pool)."""
    found = []
    for word in arguments.fail:
        match = FAIL.fullmatch(word)
        if match is None or (match[1] and not arguments.prefill_replicas):
            raise ConfigError(
                f"--fail {word!r}: expected REPLICA@SECONDS or REPLICA@SECONDS-SECONDS, as "
                "2@60-120; before it prefill: only with --prefill-replicas."
            )
        stage = 1 if arguments.prefill_replicas and not match[1] else 0
        until = None if match[4] is None else float(match[4])
        found.append((int(match[2]), float(match[3]), until, stage))
    return found


def command_line(arguments: argparse.Namespace, settings: dict[str, Any]) -> str:
    """The command kept with a result: everything that affects it, files by name."""
    words = ["jengine", "simulate", *([Path(arguments.model).name] if arguments.model else [])]
    for name, flag in {**REPLICA_FLAGS, **TRACE_FLAGS, **OTHER_FLAGS}.items():
        value = getattr(arguments, name)
        if value != flag.default:
            given = value if isinstance(value, list) else [value]
            is_file = flag.unit == "FILE"
            words += [flag_of(name), *(Path(one).name if is_file else f"{one}" for one in given)]
    return shlex.join([*words, *flag_words(settings)])
