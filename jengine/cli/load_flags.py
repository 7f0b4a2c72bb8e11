"""Flags of `jengine bench serve`, named as in `vllm bench serve`.

In: a parser. Out: flags on it, and later the given settings. Must not know loads.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from jengine.assembly.settings.flags import flag_of
from jengine.bench.serve.settings import (
    BACKENDS,
    DATASET_NAMES,
    METRICS,
    OBJECTIVES,
    LoadSettings,
)
from jengine.cli.parser import Parser
from jengine.errors import ConfigError
from jengine.request_parameters import Given, given_on
from jengine.sampling_params import PARAMETERS

Kind = Callable[[str], Any]
SAMPLED = given_on(PARAMETERS, Given.BENCH)
# Flags shared with other benchmarks, and the fields that they set.
SHARED = ("num_prompts", "trace", "seed", "tokenizer")
LENGTHS = {"input_len": "random_input_len", "output_len": "random_output_len"}
# Kept out of results.
SECRET = ("api_key", "header")
SERVER: dict[str, tuple[Kind | None, str]] = {
    "base_url": (str, "the server, instead of --host and --port"),
    "host": (str, "where it listens [127.0.0.1]"),
    "port": (int, "its port [8000]"),
    "backend": (str, f"{', '.join(BACKENDS)} [openai]"),
    "endpoint": (str, "the route, if it is not the backend's"),
    "model_name": (str, "the model to ask [the first that the server lists]"),
    "header": (None, "headers of every request, as KEY=VALUE"),
    "api_key": (str, "the server's key [$OPENAI_API_KEY]"),
    "ready_check_timeout_sec": (int, "seconds to wait until the server answers [0]"),
}
DATA: dict[str, tuple[Kind | None, str]] = {
    "dataset_name": (str, f"{', '.join(DATASET_NAMES)} [random]"),
    "dataset_path": (str, 'for custom: a file with {"prompt": ...} per line'),
    "custom_output_len": (int, "tokens to make, or -1 for output_tokens of each line [256]"),
    "random_input_len": (int, "tokens of a prompt, or of a turn [1024]"),
    "random_output_len": (int, "tokens to make [128]"),
    "random_range_ratio": (str, "lengths differ by up to this share [0.0]"),
    "random_prefix_len": (int, "tokens that all prompts begin with [0]"),
    "prefix_repetition_prefix_len": (int, "tokens of each prefix [256]"),
    "prefix_repetition_suffix_len": (int, "tokens behind it [256]"),
    "prefix_repetition_num_prefixes": (int, "prefixes [10]"),
    "prefix_repetition_output_len": (int, "tokens to make [128]"),
    "multi_turn_num_turns": (int, "turns of each conversation [4]"),
}
ARRIVAL: dict[str, tuple[Kind | None, str]] = {
    "request_rate": (float, "requests per second [inf: all at once]"),
    "burstiness": (float, "1: Poisson, less: bursts, more: even [1]"),
    "max_concurrency": (int, "most requests at once"),
    "ramp_up_strategy": (str, "linear or exponential"),
    "ramp_up_start_rps": (int, "requests per second at first"),
    "ramp_up_end_rps": (int, "requests per second at last"),
    "num_warmups": (int, "uncounted requests before [0]"),
}
SAMPLING: dict[str, tuple[Kind | None, str]] = {
    **{name: (one.kind, "[the server's]") for name, one in SAMPLED.items()},
    "logprobs": (int, "log-probabilities per token"),
    "extra_body": (json.loads, "JSON with more fields of every request"),
}
REPORT: dict[str, tuple[Kind | None, str]] = {
    "goodput": (None, f"objectives as ttft:500 tpot:50, in ms, of {', '.join(OBJECTIVES)}"),
    "percentile_metrics": (str, f"of {', '.join(METRICS)} [ttft,tpot,itl]"),
    "metric_percentiles": (str, "percentiles [99]"),
    "label": (str, "begins the name of the result's file"),
    "metadata": (None, "kept with the result, as KEY=VALUE"),
    "result_dir": (str, "folder of the result's file"),
    "result_filename": (str, "name of the result's file"),
    "request_id_prefix": (str, "begins the id of every request [bench-]"),
}
SWITCHES = {
    "ignore_eos": "go on after the end token",
    "insecure": "take any TLS certificate",
    "disable_shuffle": "keep the order of --dataset-path",
    "no_oversample": "send each line of --dataset-path once at most",
    "save_result": "write a file with the result, as vLLM names it",
    "save_detailed": "with the times and texts of every request",
    "append_result": "append to the file instead of replacing it",
    "disable_tqdm": "show no progress",
}
# Other spellings of a flag.
SPELLINGS = {"model_name": ["--model", "--served-model-name"]}
METAVARS: dict[Any, str] = {int: "N", float: "X", json.loads: "JSON"}


def add_load_flags(parser: Parser) -> None:
    """Add the flags; those not given are absent from the namespace."""
    groups = {
        "serve: the server": SERVER,
        "serve: the requests": DATA,
        "serve: when they arrive": ARRIVAL,
        "serve: how they are sampled": SAMPLING,
        "serve: the report": REPORT,
    }
    for title, flags in groups.items():
        group = parser.add_argument_group(title)
        for name, (kind, text) in flags.items():
            words = SPELLINGS.get(name, [flag_of(name)])
            rest: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS, "help": text}
            if kind is None:
                group.add_argument(*words, nargs="+", metavar="WORD", **rest)
            else:
                group.add_argument(*words, type=kind, metavar=METAVARS.get(kind, "TEXT"), **rest)
    group = parser.add_argument_group("serve: overhead")
    group.add_argument(
        "--clock-model",
        metavar="MS",
        type=float,
        help="serve MODEL with steps of so many ms that compute nothing and whose tokens tell the "
        "time: measures their way from the end of a step to the client",
    )
    group = parser.add_argument_group("serve: switches")
    for name, text in SWITCHES.items():
        group.add_argument(
            flag_of(name),
            dest=name, action="store_true", default=argparse.SUPPRESS, help=text,
        )  # fmt: skip


def load_arguments(arguments: argparse.Namespace) -> dict[str, Any]:
    """Given load settings."""
    given = vars(arguments)
    found = {field.name: given[field.name] for field in fields(LoadSettings) if field.name in given}
    for short, name in LENGTHS.items():
        if given.get(short) is not None:
            found.setdefault(name, given[short])
    found |= {"sampling": {name: given[name] for name in SAMPLED if name in given}}
    return {name: value for name, value in found.items() if value not in (None, {})}


def by_flag(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten load settings by flag, sampling included."""
    return {name: one for name, one in settings.items() if name != "sampling"} | settings.get(
        "sampling", {}
    )


def refuse_load_flags(arguments: argparse.Namespace) -> None:
    """Raise ConfigError if bench serve's flags are given with another kind."""
    if vars(arguments).get("clock_model") is not None:
        raise ConfigError("--clock-model: only bench serve has this flag.")
    given = by_flag(load_arguments(arguments))
    own = [name for name in given if name not in (*SHARED, *LENGTHS.values())]
    if own:
        word = SPELLINGS.get(own[0], [flag_of(own[0])])[0]
        raise ConfigError(f"{word}: only bench serve has this flag.")


def load_words(settings: Mapping[str, Any]) -> list[str]:
    """Load settings as command-line words, without secrets."""
    words: list[str] = []
    for name, value in by_flag(settings).items():
        if name in (*SECRET, *SHARED):
            continue
        word = SPELLINGS.get(name, [flag_of(name)])[0]
        if value is True:
            words.append(word)
        elif isinstance(value, list):
            words += [word, *map(str, value)]
        else:
            words += [word, json.dumps(value) if isinstance(value, dict) else str(value)]
    return words


def quoted(words: list[str]) -> str:
    return shlex.join(words)
