"""`jengine plan`: whether a model fits given devices, which need not be present, and its speed
bound.
"""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from jengine.assembly.settings.args import settings_of
from jengine.capacity.accelerators import ACCELERATORS, Accelerator
from jengine.capacity.cpu_nodes import memory_node
from jengine.capacity.device_layout import DeviceLayout, checked_layout
from jengine.cli.flags import add_engine_flags, check_file, engine_arguments
from jengine.cli.interrupts import interrupts_end_the_process
from jengine.cli.parser import Parser
from jengine.cli.terminal import Terminal
from jengine.errors import ConfigError
from jengine.models.reading.published import PUBLISHED

if TYPE_CHECKING:
    from jengine.cli.main import OpenLLM

USAGE = "MODEL [flags]"
EXAMPLES = f"""\
MODEL is a folder or org/name with a config.json (weights are not read), or one of these shapes:
  {", ".join(PUBLISHED)}

examples:
  jengine plan llama-70b --tp 8 --device h200
  jengine plan llama-70b --tp 8 --html plan.html
  jengine plan llama-70b --tp 8 --pp 2 --hosts 2 --batch 256 --context 8192
  jengine plan ./model --tp 2 --device a100 --json
  jengine plan llama-8b --batch 256 --context 4096 --shared 3072
  jengine plan llama-70b --quantization int4 --kv-cache-dtype fp8
  jengine plan llama-70b --cpu-offload-gb 60
  jengine plan deepseek-v3 --dp 128 --ep 128 --batch 64
  jengine plan llama-70b --tp 16 --dcp 2 --batch 8 --context 131072
  jengine plan llama-8b --pcp 8 --batch 1 --context 131072
  jengine plan llama-8b --device cpu --cores 64 --nodes 2 --batch 8
"""
ENGINE_FLAGS = settings_of("plan")
CPU = "cpu"


def add_flags(parser: Parser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a model folder, or the name of a shape")
    devices = parser.add_argument_group("devices")
    devices.add_argument(
        "--device", choices=[*sorted(ACCELERATORS), CPU], default="h200", help="[h200]"
    )
    devices.add_argument("--cores", type=int, metavar="N", help="of each node of a CPU [32]")
    devices.add_argument(
        "--nodes", type=int, metavar="N",
        help="memory nodes of a CPU, each with a replica of its own [1]",
    )  # fmt: skip
    devices.add_argument(
        "--node-gb", type=float, metavar="GB", help="memory of each node [4 for every core]"
    )
    devices.add_argument(
        "--tp", type=int, default=1, metavar="N", help="devices per layer: tensor parallelism [1]"
    )
    devices.add_argument(
        "--pp", type=int, default=1, metavar="N", help="stages: pipeline parallelism [1]"
    )
    devices.add_argument(
        "--dp", type=int, default=1, metavar="N", help="replicas: data parallelism [1]"
    )
    devices.add_argument(
        "--ep",
        type=int,
        default=0,
        metavar="N",
        help="devices that share the experts, each with some whole: expert parallelism [--tp, each "
        "with a part of every one]",
    )
    devices.add_argument(
        "--dcp", type=int, default=1, metavar="N",
        help="of the --tp devices, those that divide the cached tokens of each request: decode "
        "context parallelism [1]",
    )  # fmt: skip
    devices.add_argument(
        "--pcp", type=int, default=1, metavar="N",
        help="groups of devices, each with all weights, that divide the tokens of a step: prefill "
        "context parallelism [1]",
    )  # fmt: skip
    devices.add_argument("--hosts", type=int, metavar="N", help="hosts [one for every 8 devices]")
    devices.add_argument(
        "--network", type=float, default=400, metavar="GBIT",
        help="network port of each device, Gbit/s [400]",
    )  # fmt: skip
    work = parser.add_argument_group("work")
    work.add_argument(
        "--batch",
        type=int,
        default=64,
        metavar="N",
        help="requests that run at once in a replica [64]",
    )
    work.add_argument(
        "--context", type=int, metavar="N",
        help="tokens of each, on average [4096, or all that the model takes if that is less]",
    )  # fmt: skip
    work.add_argument(
        "--shared", type=int, default=0, metavar="N",
        help="leading tokens that all requests have in common, such as a system prompt [0]",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--html", metavar="FILE", help="write a page with charts as well")
    add_engine_flags(parser, only=ENGINE_FLAGS)


def run(arguments: argparse.Namespace, terminal: Terminal, open_llm: OpenLLM) -> int:
    """Calculate and print. Exit status 1 if it does not fit."""
    settings = engine_arguments(arguments, ENGINE_FLAGS)
    if arguments.html:
        check_file("--html", arguments.html)
    device, layout = devices_of(arguments)
    with interrupts_end_the_process():
        # Importing jax takes a second: after the flags have been checked.
        paper = importlib.import_module("jengine.capacity.paper").paper_plan(
            arguments.model,
            settings,
            device,
            layout,
            (arguments.batch, arguments.context),
            arguments.network,
            arguments.shared,
        )
        report = importlib.import_module("jengine.capacity.paper_report")
    if arguments.html:
        page = importlib.import_module("jengine.capacity.paper_page").as_page(paper)
        Path(arguments.html).write_text(page, encoding="utf-8")
    as_json = arguments.json
    terminal.say(json.dumps(report.as_json(paper), indent=2) if as_json else report.as_text(paper))
    return 0 if paper.fits else 1


def devices_of(arguments: argparse.Namespace) -> tuple[Accelerator, DeviceLayout]:
    """Kind and number of devices."""
    node = {name: getattr(arguments, name) for name in ("cores", "nodes", "node_gb")}
    given = ", ".join(
        f"--{name.replace('_', '-')}" for name, one in node.items() if one is not None
    )
    ways = {name: getattr(arguments, name) for name in ("tp", "pp", "dp", "ep", "dcp", "pcp")}
    if arguments.device != CPU:
        if given:
            raise ConfigError(f"{given}: expected with --device {CPU}.")
        layout = checked_layout(hosts=arguments.hosts, **ways)
        return ACCELERATORS[arguments.device], layout
    if divided := [f"--{name}" for name, count in ways.items() if count > 1]:
        raise ConfigError(
            f"{', '.join(divided)} with --device {CPU}: a node runs a whole replica. --nodes says "
            "how many there are."
        )
    cores = 32 if arguments.cores is None else arguments.cores
    nodes = 1 if arguments.nodes is None else arguments.nodes
    if nodes < 1:
        raise ConfigError(f"--nodes {nodes}: expected 1 or more.")
    return memory_node(cores, arguments.node_gb), checked_layout(dp=nodes, hosts=arguments.hosts)
