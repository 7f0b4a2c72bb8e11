"""Measurements of `jengine bench`, one function per kind.

In: parsed flags. Out: a result for JSON, and its printed lines. Each function imports the module of
jengine.bench that it needs.
"""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jengine.assembly.settings.flags import flag_of
from jengine.bench.serve.settings import LoadSettings
from jengine.cli.flags import engine_arguments, flag_words
from jengine.cli.load_flags import load_arguments
from jengine.errors import ConfigError

if TYPE_CHECKING:
    from jengine.cli.main import OpenLLM

# Prompt and output tokens of benchmarks with fixed lengths.
INPUT_LEN, OUTPUT_LEN = 32, 128
Measured = tuple[dict[str, Any], str]
Note = Callable[[str], object]  # shows a progress line


def throughput(arguments: argparse.Namespace, open_llm: OpenLLM, note: Note) -> Measured:
    """Tokens per second on a workload; --against alternates with a peer."""
    bench = importlib.import_module("jengine.bench.throughput")
    workloads = importlib.import_module("jengine.bench.workloads")
    # Typos are reported before an engine starts, which is slow.
    items = None if arguments.trace is None else workloads.read_trace(Path(arguments.trace))
    if items is None:
        workloads.named(arguments.workload)
    settings = token_engine(arguments, ["greedy"])
    challenge = None
    if arguments.against == "deterministic":
        challenge = bench.other_engine(
            lambda: open_llm(arguments.model, **deterministic(settings)), "jengine, deterministic"
        )
    elif arguments.against == "plain":
        plain, version = plainer(settings)
        challenge = bench.other_engine(lambda: open_llm(arguments.model, **plain), version)
    elif arguments.against is not None:
        challenge = bench.peer(arguments.against, arguments.peer_python)
    with open_llm(arguments.model, **settings) as llm:
        if items is None:
            vocab = llm.engine.model.vocab_size
            items = workloads.generated(
                arguments.workload, vocab, arguments.num_prompts,
                encode=workloads.encoder_of(llm.engine.folder),
            )  # fmt: skip
        result = bench.measure(llm, items, arguments.repeats, challenge)
    work = arguments.trace or arguments.workload
    rounded = settings.get("quantization")
    if rounded is not None:
        result["quantization"] = rounded
    return {"workload": work, **result}, bench.printed(result)


def plainer(settings: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Settings of the baseline: without drafts, or else without quantization, and its name."""
    peers = {"speculative_config": "without drafts", "quantization": "plain weights"}
    for name, called in peers.items():
        if settings.get(name) is not None:
            return {**settings, name: None}, f"jengine, {called}"
    raise ConfigError(
        "--against plain: expected --speculative-config or --quantization, which that engine lacks."
    )


def deterministic(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings in deterministic mode, which may compile a single program."""
    return {**settings, "deterministic": True, "compilation_config": {"wait_for": "all"}}


def latency(arguments: argparse.Namespace, open_llm: OpenLLM, note: Note) -> Measured:
    """Seconds per batch."""
    bench = importlib.import_module("jengine.bench.latency")
    beams = arguments.use_beam_search
    variant = "scored" if beams else "greedy" if arguments.n == 1 else "sampled"
    with open_llm(arguments.model, **token_engine(arguments, [variant])) as llm:
        result = bench.measure(
            llm,
            n=arguments.n,
            beams=beams,
            input_len=arguments.input_len or INPUT_LEN,
            output_len=arguments.output_len or OUTPUT_LEN,
            batch_size=arguments.batch_size,
            warm_up=arguments.num_iters_warmup,
            iterations=arguments.num_iters,
        )
    return result, bench.printed(result)


def startup(arguments: argparse.Namespace, open_llm: OpenLLM, note: Note) -> Measured:
    """Seconds from process start to first token."""
    bench = importlib.import_module("jengine.bench.startup")
    args = importlib.import_module("jengine.assembly.settings.args").EngineArgs
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


def load(arguments: argparse.Namespace, open_llm: OpenLLM, note: Note) -> Measured:
    """Gigabytes of weights loaded per second."""
    bench = importlib.import_module("jengine.bench.load")
    settings = engine_arguments(arguments)
    dtype = settings.pop("dtype", "auto")
    if settings:
        flags = ", ".join(flag_of(name) for name in settings)
        raise ConfigError(f"bench load starts no engine: it takes --dtype, and not {flags}.")
    result = bench.measure(arguments.model, dtype, arguments.repeats)
    return result, bench.printed(result)


def growth(arguments: argparse.Namespace, open_llm: OpenLLM, note: Note) -> Measured:
    """Growth of time and memory over a run, or an earlier result."""
    bench = importlib.import_module("jengine.bench.growth")
    if arguments.from_file is not None:
        result = bench.read(Path(arguments.from_file))
        return result, bench.printed(result)
    with open_llm(arguments.model, **token_engine(arguments, ["greedy"])) as llm:
        if arguments.step_table is not None:
            steps = importlib.import_module("jengine.bench.step_table")
            table = {"model": arguments.model, **steps.measure(llm, arguments.num_iters)}
            Path(arguments.step_table).write_text(json.dumps(table) + "\n", encoding="utf-8")
            note(f"steps for jengine simulate --table: {arguments.step_table}")
        result = bench.measure(
            llm,
            running=arguments.running,
            steps=arguments.steps,
            contexts=arguments.contexts,
            rows=arguments.rows,
            iterations=arguments.num_iters,
            prompt_length=arguments.input_len or INPUT_LEN,
        )
    return result, bench.printed(result)


def host(arguments: argparse.Namespace, open_llm: OpenLLM, note: Note) -> Measured:
    """Milliseconds of host time per step."""
    bench = importlib.import_module("jengine.bench.host")
    result = bench.measure_all(arguments.running, arguments.steps)
    return result, bench.printed(result)


def serve(arguments: argparse.Namespace, open_llm: OpenLLM, note: Note) -> Measured:
    """A server's latencies under load, or an earlier result."""
    settings = LoadSettings(**load_arguments(arguments))
    report = importlib.import_module("jengine.bench.serve.printed")
    runs = importlib.import_module("jengine.bench.serve.runs")
    order = runs.RunOrder(
        settings=settings,
        command=arguments.command,
        model=arguments.model,
        engine=engine_arguments(arguments) if arguments.model else {},
        words=flag_words,
        against=arguments.against,
        peer_python=arguments.peer_python,
        repeats=arguments.repeats,
        clock_ms=arguments.clock_model,
    )
    result = runs.run(order, note)
    return result, report.printed(result, settings)


def token_engine(
    arguments: argparse.Namespace, variants: list[str] | None = None
) -> dict[str, Any]:
    """Engine settings without tokenizer and with only the step variants needed."""
    settings = engine_arguments(arguments)
    if variants is not None:
        compilation = settings.get("compilation_config", {})
        # Compile everything first, so that nothing compiles during a measurement.
        usual = {"variants": variants, "wait_for": "all"}
        settings["compilation_config"] = {**usual, **compilation}
    return {"skip_tokenizer_init": True, **settings}


KINDS: dict[str, Callable[[argparse.Namespace, OpenLLM, Note], Measured]] = {
    "throughput": throughput,
    "latency": latency,
    "startup": startup,
    "load": load,
    "growth": growth,
    "host": host,
    "serve": serve,
}
