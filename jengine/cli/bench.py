"""`jengine bench`: measures speed and memory; keeps command, commit and machine with the result.

Prints a summary, and one JSON object as the last line. Measurements are in measurements.py.
"""

from __future__ import annotations

import argparse
import importlib
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jengine.assembly.settings.flags import flag_of
from jengine.cli.flags import add_engine_flags, engine_arguments, flag_words
from jengine.cli.load_flags import (
    LENGTHS,
    SHARED,
    add_load_flags,
    load_arguments,
    load_words,
    refuse_load_flags,
)
from jengine.cli.measurements import KINDS
from jengine.cli.parser import Parser
from jengine.cli.terminal import Terminal
from jengine.errors import ConfigError

if TYPE_CHECKING:
    from jengine.cli.main import OpenLLM

USAGE = "throughput|latency|startup|load|growth|host|serve [MODEL] [flags]"
EXAMPLES = """\
examples:
  jengine bench throughput demo
  jengine bench throughput ./model --workload mixed --against transformers
  jengine bench throughput ./model --trace work.jsonl --against vllm --peer-python vllm/bin/python
  jengine bench throughput ./model --workload repeat --speculative-config.method suffix \
      --against plain
  jengine bench latency ./model --input-len 512 --output-len 64 --batch-size 8
  jengine bench startup ./model
  jengine bench load ./model
  jengine bench growth demo --plots ./plots --output-json growth.json
  jengine bench growth --from growth.json --plots ./plots
  jengine bench host
  jengine bench serve --port 8000 --random-input-len 256 --num-prompts 200 --request-rate 10
  jengine bench serve --base-url http://host:8000 --max-concurrency 64 --goodput ttft:500 tpot:50
  jengine bench serve ./model --max-num-seqs 64 --max-concurrency 64 --against engine
  jengine bench serve demo --clock-model 10 --max-concurrency 64
"""
# Defaults of this command's own flags.
DEFAULTS: dict[str, Any] = {
    "workload": "mixed",
    "trace": None,
    "num_prompts": None,
    "repeats": 3,
    "against": None,
    "clock_model": None,
    "input_len": None,
    "output_len": None,
    "batch_size": 8,
    "n": 1,
    "use_beam_search": False,
    "num_iters_warmup": 2,
    "num_iters": 10,
    "num_iters_cold": 3,
    "num_iters_warm": 3,
    "rows": [8, 32],
    "contexts": [128, 256, 512, 1024, 2048, 4096, 8192],
    "running": [16, 64, 256, 1024],
    "steps": 200,
}
# Kinds with a page of charts -> the module that draws it.
PAGES = {"growth": "jengine.bench.growth", "serve": "jengine.bench.serve.report"}
# Minimum values.
LEAST = {
    **dict.fromkeys(("repeats", "num_prompts", "input_len", "output_len", "batch_size", "n"), 1),
    **dict.fromkeys(("num_iters", "steps", "rows", "contexts", "running"), 1),
    **dict.fromkeys(("num_iters_warmup", "num_iters_cold", "num_iters_warm"), 0),
}


def add_flags(parser: Parser) -> None:
    parser.add_argument("kind", metavar="KIND", choices=KINDS, help="what to measure")
    parser.add_argument("model", metavar="MODEL", nargs="?", help="a folder, org/name, or demo")
    parser.add_argument(
        "--output-json", "--json", metavar="FILE", help="also write the JSON to a file"
    )
    group = parser.add_argument_group(
        "throughput", "--repeats also sets how often `bench load` loads"
    )
    group.add_argument(
        "--workload",
        metavar="NAME",
        help="mixed, decode, alone, prefill, shared, repeat, edit, summary, or in the demo model's "
        "words objects and stories [mixed]",
    )
    group.add_argument(
        "--trace", metavar="FILE", help="requests from a file, one JSON object per line"
    )
    group.add_argument("--num-prompts", metavar="N", type=int, help="how many requests")
    group.add_argument("--repeats", metavar="N", type=int, help="runs; the median counts")
    group.add_argument(
        "--against",
        metavar="WHAT",
        help="compare, in turns: transformers, vllm, llama.cpp (on a GGUF file), deterministic "
        "(jengine's own mode) or plain (jengine without --speculative-config, or else without "
        "--quantization); for serve: engine (without a server), vllm, or a URL",
    )
    group.add_argument(
        "--peer-python",
        "--vllm-python",
        metavar="PATH",
        help="a Python that has the peer installed [this one]",
    )
    group = parser.add_argument_group("latency")
    group.add_argument("--input-len", metavar="N", type=int, help="tokens [32]")
    group.add_argument("--output-len", metavar="N", type=int, help="tokens [128]")
    group.add_argument("--batch-size", metavar="N", type=int, help="requests [8]")
    group.add_argument("--n", metavar="N", type=int, help="answers to each [1]")
    group.add_argument(
        "--use-beam-search", action="store_true", help="search with N beams, all kept to the end"
    )
    group.add_argument("--num-iters-warmup", metavar="N", type=int, help="uncounted [2]")
    group.add_argument("--num-iters", metavar="N", type=int, help="counted [10]")
    group = parser.add_argument_group("startup")
    group.add_argument(
        "--num-iters-cold", metavar="N", type=int, help="processes with an empty cache [3]"
    )
    group.add_argument(
        "--num-iters-warm", metavar="N", type=int, help="processes with a filled cache [3]"
    )
    group = parser.add_argument_group(
        "growth",
        "Decodes for --num-iters steps; prompts have --input-len tokens.",
    )
    group.add_argument("--rows", metavar="N", type=int, nargs="+", help="rows of a step [8 32]")
    group.add_argument(
        "--contexts", metavar="N", type=int, nargs="+", help="tokens [128 to 8192, what fits]"
    )
    group.add_argument(
        "--step-table",
        metavar="FILE",
        help="write seconds by decode rows, prompt tokens and context for jengine simulate",
    )
    group.add_argument("--plots", metavar="FOLDER", help="write a page of charts to this folder")
    group.add_argument(
        "--from", dest="from_file", metavar="FILE", help="show an earlier --output-json again"
    )
    group = parser.add_argument_group("host and growth")
    group.add_argument("--running", metavar="N", type=int, nargs="+", help="running requests")
    group.add_argument(
        "--steps", metavar="N", type=int, help="steps for each number of requests [200]"
    )
    add_load_flags(parser)
    add_engine_flags(parser)
    parser.set_defaults(**DEFAULTS)


def run(arguments: argparse.Namespace, terminal: Terminal, open_llm: OpenLLM) -> int:
    """Run the measurement; the last line printed is JSON."""
    check(arguments)
    arguments.command = command_line(arguments)
    measured, printed = KINDS[arguments.kind](arguments, open_llm, terminal.note)
    result = {"command": arguments.command, **measured}
    terminal.say(printed)
    if arguments.output_json:
        text = json.dumps(result, indent=1) + "\n"
        Path(arguments.output_json).write_text(text, encoding="utf-8")
    if arguments.plots:
        page = importlib.import_module(PAGES[arguments.kind]).draw(result, Path(arguments.plots))
        terminal.say(f"charts: {page}")
    terminal.say(json.dumps(result))
    return 0


def check(arguments: argparse.Namespace) -> None:
    """Raise ConfigError for combinations of flags that argparse accepts."""
    if arguments.from_file is not None and arguments.kind != "growth":
        raise ConfigError("--from: only bench growth reads an earlier result.")
    if arguments.plots is not None and arguments.kind not in PAGES:
        raise ConfigError(f"--plots: only bench {' and bench '.join(PAGES)} draw charts.")
    if arguments.kind != "serve":
        refuse_load_flags(arguments)
    without = arguments.kind == "host" or arguments.from_file is not None
    # bench serve connects to a running server, or starts one for a model.
    if arguments.kind != "serve" and (arguments.model is None) != without:
        problem = "needs a model" if arguments.model is None else "has no model"
        raise ConfigError(f"bench {arguments.kind} {problem}: {USAGE}")
    for name, least in LEAST.items():
        given = getattr(arguments, name)
        for value in given if isinstance(given, list) else [given]:
            if value is not None and value < least:
                raise ConfigError(f"{flag_of(name)} {value}: expected {least} or more.")
    if arguments.kind == "startup" and not arguments.num_iters_cold + arguments.num_iters_warm:
        raise ConfigError("bench startup without cold and without warm processes measures nothing.")
    if arguments.step_table is not None and (arguments.kind != "growth" or without):
        raise ConfigError("--step-table: only bench growth measures steps, and of a model.")
    files = {"--output-json": arguments.output_json, "--step-table": arguments.step_table}
    for flag, file in files.items():
        if file and not Path(file).absolute().parent.is_dir():
            raise ConfigError(f"{flag} {file!r}: expected a file in a folder that exists.")


def command_line(arguments: argparse.Namespace) -> str:
    """The command to reproduce the result, with absolute paths cut to their last component."""
    words = ["jengine", "bench", arguments.kind]
    words += [own_name(arguments.model)] if arguments.model else []
    for name, default in DEFAULTS.items():
        value = getattr(arguments, name)
        if value != default and (arguments.kind != "serve" or name not in LENGTHS):
            given = [] if value is True else value if isinstance(value, list) else [value]
            words += [flag_of(name), *(own_name(str(one)) for one in given)]
    if arguments.kind == "serve":
        words += [own_name(word) for word in load_words(load_arguments(arguments))]
    settings = engine_arguments(arguments) if arguments.model else shared_settings(arguments)
    return shlex.join([*words, *flag_words(settings)])


def shared_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Engine settings also used by benchmarks that start no engine."""
    given = vars(arguments)
    return {name: given[name] for name in SHARED if name in given and name not in DEFAULTS}


def own_name(word: str) -> str:
    """Last component of an absolute path; other words unchanged."""
    return Path(word).name if Path(word).is_absolute() else word
