"""Flags of engine and sampling settings, shared by commands.

In: a parser. Out: flags on it, later the given keyword arguments; defaults are left to the Python
API. Must not know commands.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from jengine.assembly.settings.args import ENGINE_HELP, RENAMED, SETTINGS, EngineArgs
from jengine.assembly.settings.flags import add_field_flags, flag_of, flag_settings
from jengine.assembly.settings.values import field_types, template_text
from jengine.assembly.settings.vllm_args import PARTS, VLLM_SETTINGS
from jengine.assembly.settings.vllm_tuning import CONVERTED, SERVERS, WITHOUT_EFFECT
from jengine.cli.parser import Parser
from jengine.errors import ConfigError
from jengine.sampling_params import PARAMETERS, SamplingParams

SAMPLING_HELP = {name: one.help for name, one in PARAMETERS.items() if one.help}
# vLLM's name of `executor`: ray means the same, mp and uni change nothing.
BACKEND = "distributed_executor_backend"
# vLLM's settings without effect here, except those named like server flags.
IDLE = {
    name: default
    for why, names in WITHOUT_EFFECT.items()
    for name, default in names.items()
    if why != SERVERS
}
# In both settings: a request is repeated with the given seed.
SHARED = ("seed",)


def add_engine_flags(
    parser: Parser, only: Sequence[str] | None = None, *, short: bool = False
) -> None:
    """Add a flag per engine setting, or for those in `only`; `short` adds vLLM's abbreviations."""
    parser.unbuilt = unbuilt_flags()
    group = parser.add_argument_group("engine", "None of these is needed to begin.")
    wanted = {name: ENGINE_HELP[name] for name in only or ENGINE_HELP}
    short_flags = {name: one.short for name, one in SETTINGS.items() if short and one.short}
    add_field_flags(group, EngineArgs, wanted, short_flags)
    if only is None:
        group.add_argument(
            "--distributed-executor-backend", dest=BACKEND, metavar="TEXT",
            default=argparse.SUPPRESS, help=argparse.SUPPRESS,
        )  # fmt: skip
        for name, part in PARTS.items():
            group.add_argument(f"--{name.replace('_', '-')}", default=argparse.SUPPRESS,
                               help=argparse.SUPPRESS, type=part.parse)  # fmt: skip
        for name, default in IDLE.items():
            group.add_argument(f"--{name.replace('_', '-')}", default=argparse.SUPPRESS,
                               help=argparse.SUPPRESS, **form_of(default))  # fmt: skip
        for name, ours in RENAMED.items():
            group.add_argument(f"--{name.replace('_', '-')}", default=argparse.SUPPRESS,
                               help=argparse.SUPPRESS, **renamed_form(name, ours))  # fmt: skip


def renamed_form(name: str, ours: str) -> dict[str, Any]:
    """argparse options for vLLM's flag of a setting that has another name here."""
    kind = field_types(EngineArgs)[ours]
    if bool in (kind, *get_args(kind)) or name in CONVERTED:  # a switch in vLLM
        return form_of(True)
    return flag_settings(ours, kind)


def form_of(default: Any) -> dict[str, Any]:
    """argparse options for a flag that is accepted without effect."""
    if isinstance(default, bool) or default in ([True, False], [False, True]):
        return {"action": argparse.BooleanOptionalAction}
    return {"nargs": "+"} if default is None else {}


def add_sampling_flags(parser: Parser, leave_out: Sequence[str] = (), **better_help: str) -> None:
    """Add a flag per sampling setting that makes sense on a command line."""
    group = parser.add_argument_group(
        "sampling", "The model's generation_config.json may change the [defaults]."
    )
    wanted = {**SAMPLING_HELP, **better_help}
    for name in leave_out:
        del wanted[name]
    add_field_flags(group, SamplingParams, wanted)


def engine_arguments(
    arguments: argparse.Namespace, only: Sequence[str] | None = None
) -> dict[str, Any]:
    """Given engine settings, validated before an engine is started. `only`: names passed to
    add_engine_flags; the command's own flags may share names with other settings."""
    given = given_engine_settings(arguments)
    if only is not None:
        given = {name: value for name, value in given.items() if name in only}
    if "chat_template" in given:
        given["chat_template"] = template_text("--chat-template", given["chat_template"])
    EngineArgs.checked("jengine", model=arguments.model, **given)
    return given


def given_engine_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    names = {*ENGINE_HELP, BACKEND, *PARTS, *IDLE, *RENAMED}
    return {name: value for name, value in vars(arguments).items() if name in names}


def sampling_arguments(arguments: argparse.Namespace) -> dict[str, Any]:
    """Given sampling settings."""
    names = {*SAMPLING_HELP, *SHARED}
    return {name: value for name, value in vars(arguments).items() if name in names}


def unbuilt_flags() -> dict[str, str]:
    """Unsupported flags of other engines, with advice."""
    return {
        flag_of(name): setting.instead or f"a setting of {setting.feature} that is not built yet"
        for name, setting in VLLM_SETTINGS.items()
        if setting.idle is None
    }


def flag_words(settings: dict[str, Any]) -> list[str]:
    """Settings as command-line flags."""
    words: list[str] = []
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, Mapping):  # --flag.key value
            for key, part in value.items():
                words += [f"--{flag}.{key}", part if isinstance(part, str) else json.dumps(part)]
        elif isinstance(value, list):
            words += [f"--{flag}", *map(str, value)]
        else:
            words += [f"--{flag}", str(value)]
    return words


def check_file(flag: str, file: str) -> None:
    """Raise ConfigError if an output file's folder does not exist."""
    if not Path(file).absolute().parent.is_dir():
        raise ConfigError(f"{flag} {file!r}: expected a file in a folder that exists.")
