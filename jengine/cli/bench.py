"""`jengine bench`: how fast it is, measured so that anybody can measure it again.

Prints the lines that people look for, and one JSON object as the last line.
"""

from __future__ import annotations

import argparse
import importlib
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jengine.cli.flags import add_engine_flags, engine_arguments
from jengine.cli.parser import Parser
from jengine.cli.terminal import Terminal
from jengine.errors import ConfigError

if TYPE_CHECKING:
    from jengine.cli.main import OpenLLM

USAGE = "throughput|latency|startup|load|growth|host [MODEL] [flags]"
EXAMPLES = """\
examples:
  jengine bench throughput demo
  jengine bench throughput ./model --workload mixed --against transformers
  jengine bench throughput ./model --trace work.jsonl --against vllm --peer-python vllm/bin/python
  jengine bench latency ./model --input-len 512 --output-len 64 --batch-size 8
  jengine bench startup ./model
  jengine bench load ./model
  jengine bench growth demo --plots ./plots --output-json growth.json
  jengine bench growth --from growth.json --plots ./plots
  jengine bench host
"""
KINDS = ("throughput", "latency", "startup", "load", "growth", "host")
# Flags of our own, and what they are if they are not given.
USUAL = {
    "workload": "mixed",
    "trace": None,
    "num_prompts": None,
    "repeats": 3,
    "against": None,
    "input_len": 32,
    "output_len": 128,
    "batch_size": 8,
    "num_iters_warmup": 2,
    "num_iters": 10,
    "num_iters_cold": 3,
    "num_iters_warm": 3,
    "contexts": [128, 256, 512, 1024, 2048, 4096, 8192],
    "running": [16, 64, 256, 1024],
    "steps": 200,
}


def add_flags(parser: Parser) -> None:
    """The flags of this command."""
    parser.add_argument("kind", metavar="KIND", choices=KINDS, help="what to measure")
    parser.add_argument("model", metavar="MODEL", nargs="?", help="a model folder, or demo")
    parser.add_argument(
        "--output-json", "--json", metavar="FILE", help="also write the JSON to a file"
    )
    group = parser.add_argument_group("throughput", "--repeats also counts the loads of load")
    group.add_argument(
        "--workload", metavar="NAME", help="mixed, decode, prefill or shared [mixed]"
    )
    group.add_argument("--trace", metavar="FILE", help="requests from a file, a JSON object a line")
    group.add_argument("--num-prompts", metavar="N", type=int, help="how many requests")
    group.add_argument("--repeats", metavar="N", type=int, help="runs; the median counts")
    group.add_argument(
        "--against",
        metavar="WHAT",
        help="in turn with ours: transformers, vllm, or deterministic (our own mode)",
    )
    group.add_argument(
        "--peer-python", "--vllm-python", metavar="PATH", help="a Python that has it [this one]"
    )
    group = parser.add_argument_group("latency")
    group.add_argument("--input-len", metavar="N", type=int, help="tokens [32]")
    group.add_argument("--output-len", metavar="N", type=int, help="tokens [128]")
    group.add_argument("--batch-size", metavar="N", type=int, help="requests [8]")
    group.add_argument("--num-iters-warmup", metavar="N", type=int, help="uncounted [2]")
    group.add_argument("--num-iters", metavar="N", type=int, help="counted [10]")
    group = parser.add_argument_group("startup")
    group.add_argument("--num-iters-cold", metavar="N", type=int, help="processes [3]")
    group.add_argument("--num-iters-warm", metavar="N", type=int, help="processes [3]")
    group = parser.add_argument_group(
        "growth", "also --batch-size rows and --num-iters steps of decoding, --input-len prompts"
    )
    group.add_argument(
        "--contexts", metavar="N", type=int, nargs="+", help="tokens [128 to 8192, what fits]"
    )
    group.add_argument("--plots", metavar="FOLDER", help="write a page of charts there")
    group.add_argument(
        "--from", dest="from_file", metavar="FILE", help="draw an earlier --output-json again"
    )
    group = parser.add_argument_group("host and growth")
    group.add_argument("--running", metavar="N", type=int, nargs="+", help="requests")
    group.add_argument("--steps", metavar="N", type=int, help="steps of each [200]")
    add_engine_flags(parser)
    parser.set_defaults(**USUAL)


def run(arguments: argparse.Namespace, terminal: Terminal, open_llm: OpenLLM) -> int:
    """Measure, print, and JSON as the last line."""
    check(arguments)
    measured, printed = {
        "throughput": throughput,
        "latency": latency,
        "startup": startup,
        "load": load,
        "growth": growth,
        "host": host,
    }[arguments.kind](arguments, open_llm)
    result = {"command": command_line(arguments), **measured}
    terminal.say(printed)
    if arguments.output_json:
        text = json.dumps(result, indent=1) + "\n"
        Path(arguments.output_json).write_text(text, encoding="utf-8")
    if arguments.plots:
        page = importlib.import_module("jengine.bench.growth").draw(result, Path(arguments.plots))
        terminal.say(f"charts: {page}")
    terminal.say(json.dumps(result))
    return 0


def check(arguments: argparse.Namespace) -> None:
    """Refuse combinations of flags that argparse accepts."""
    for flag, value in (("--from", arguments.from_file), ("--plots", arguments.plots)):
        if value is not None and arguments.kind != "growth":
            raise ConfigError(f"{flag}: only bench growth draws charts.")
    without = arguments.kind == "host" or arguments.from_file is not None
    if (arguments.model is None) != without:
        problem = "needs a model" if arguments.model is None else "has no model"
        raise ConfigError(f"bench {arguments.kind} {problem}: {USAGE}")
    for name in ("repeats", "num_iters", "batch_size", "input_len", "output_len", "steps"):
        if getattr(arguments, name) < 1:
            raise ConfigError(
                f"--{name.replace('_', '-')} {getattr(arguments, name)}: expected 1 or more."
            )
    for name in ("contexts", "running"):
        if min(getattr(arguments, name)) < 1:
            raise ConfigError(f"--{name} {min(getattr(arguments, name))}: expected 1 or more.")
    file = arguments.output_json
    if file and not Path(file).absolute().parent.is_dir():
        raise ConfigError(f"--output-json {file!r}: expected a file in a folder that exists.")


def throughput(arguments: argparse.Namespace, open_llm: OpenLLM) -> tuple[dict[str, Any], str]:
    """Tokens a second on a workload, perhaps in turn with a peer."""
    bench = importlib.import_module("jengine.bench.throughput")
    workloads = importlib.import_module("jengine.bench.workloads")
    items = None if arguments.trace is None else workloads.read_trace(Path(arguments.trace))
    settings = token_engine(arguments, ["greedy"])
    challenge = None
    if arguments.against == "deterministic":
        challenge = bench.other_engine(
            lambda: open_llm(arguments.model, **deterministic(settings)), "jengine, deterministic"
        )
    elif arguments.against is not None:
        challenge = bench.peer(arguments.against, arguments.peer_python)
    with open_llm(arguments.model, **settings) as llm:
        if items is None:
            vocab = llm.engine.model.vocab_size
            items = workloads.generated(arguments.workload, vocab, arguments.num_prompts)
        result = bench.measure(llm, items, arguments.repeats, challenge)
    work = arguments.trace or arguments.workload
    return {"workload": work, **result}, bench.printed(result)


def deterministic(settings: dict[str, Any]) -> dict[str, Any]:
    """The same engine in deterministic mode, which compiles one program of its own."""
    others = {name: value for name, value in settings.items() if name != "compilation_config"}
    return {**others, "deterministic": True}


def latency(arguments: argparse.Namespace, open_llm: OpenLLM) -> tuple[dict[str, Any], str]:
    """Seconds of one batch."""
    bench = importlib.import_module("jengine.bench.latency")
    with open_llm(arguments.model, **token_engine(arguments, ["greedy"])) as llm:
        result = bench.measure(
            llm,
            input_len=arguments.input_len,
            output_len=arguments.output_len,
            batch_size=arguments.batch_size,
            warm_up=arguments.num_iters_warmup,
            iterations=arguments.num_iters,
        )
    return result, bench.printed(result)


def startup(arguments: argparse.Namespace, open_llm: OpenLLM) -> tuple[dict[str, Any], str]:
    """Seconds from the start of a process to its first token."""
    bench = importlib.import_module("jengine.bench.startup")
    args = importlib.import_module("jengine.assembly.args").EngineArgs
    settings = token_engine(arguments)
    wait_for = args.checked("jengine bench", arguments.model, **settings).wait_for
    compilation = {**settings.get("compilation_config", {}), "wait_for": wait_for}
    result = bench.measure(
        arguments.model,
        {**settings, "compilation_config": compilation},
        cold=arguments.num_iters_cold,
        warm=arguments.num_iters_warm,
    )
    return result, bench.printed(result)


def load(arguments: argparse.Namespace, open_llm: OpenLLM) -> tuple[dict[str, Any], str]:
    """Gigabytes of weights per second."""
    bench = importlib.import_module("jengine.bench.load")
    settings = engine_arguments(arguments)
    dtype = settings.pop("dtype", "auto")
    if settings:
        flags = ", ".join("--" + name.replace("_", "-") for name in settings)
        raise ConfigError(f"bench load starts no engine: it takes --dtype, and not {flags}.")
    result = bench.measure(arguments.model, dtype, arguments.repeats)
    return result, bench.printed(result)


def growth(arguments: argparse.Namespace, open_llm: OpenLLM) -> tuple[dict[str, Any], str]:
    """Measure how time and memory grow, or show what an earlier run measured."""
    bench = importlib.import_module("jengine.bench.growth")
    if arguments.from_file is not None:
        result = bench.read(Path(arguments.from_file))
        return result, bench.printed(result)
    with open_llm(arguments.model, **token_engine(arguments, ["greedy"])) as llm:
        result = bench.measure(
            llm,
            running=arguments.running,
            steps=arguments.steps,
            contexts=arguments.contexts,
            rows=arguments.batch_size,
            iterations=arguments.num_iters,
            prompt_length=arguments.input_len,
        )
    return result, bench.printed(result)


def host(arguments: argparse.Namespace, open_llm: OpenLLM) -> tuple[dict[str, Any], str]:
    """Milliseconds of Python a step."""
    bench = importlib.import_module("jengine.bench.host")
    result = bench.measure_all(arguments.running, arguments.steps)
    return result, bench.printed(result)


def token_engine(
    arguments: argparse.Namespace, variants: list[str] | None = None
) -> dict[str, Any]:
    """The engine's settings: tokens in and out, with the variants that the bench uses."""
    settings = engine_arguments(arguments)
    if variants is not None:
        compilation = settings.get("compilation_config", {})
        # Complete, so that nothing is compiled while it is measured.
        usual = {"variants": variants, "wait_for": "all"}
        settings["compilation_config"] = {**usual, **compilation}
    return {"skip_tokenizer_init": True, **settings}


def command_line(arguments: argparse.Namespace) -> str:
    """The command, as it may be typed again where the model and the trace lie; other paths of this
    machine are left out."""
    words = ["jengine", "bench", arguments.kind]
    words += [own_name(arguments.model)] if arguments.model else []
    for name, usual in USUAL.items():
        value = getattr(arguments, name)
        if value != usual:
            given = value if isinstance(value, list) else [value]
            words += ["--" + name.replace("_", "-"), *(own_name(str(one)) for one in given)]
    flag_words = importlib.import_module("jengine.cli.doctor").flag_words
    settings = engine_arguments(arguments) if arguments.model else {}
    return shlex.join([*words, *flag_words(settings)])


def own_name(word: str) -> str:
    """A word of the command; of an absolute path only its last part."""
    return Path(word).name if Path(word).is_absolute() else word
