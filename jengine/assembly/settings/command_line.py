"""The settings of an engine as flags of a command line. No jax.

In: a parser, or what it has parsed, and the dataclass of the settings. Out: flags, or settings by
name.
"""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any

from jengine.assembly.settings.flags import ENGINE_HELP, add_field_flags
from jengine.assembly.settings.vllm_args import RENAMED, SPECULATION, VLLM_SETTINGS
from jengine.errors import ConfigError


def add_engine_flags(parser: argparse.ArgumentParser, owner: type[Any]) -> argparse.ArgumentParser:
    """Add a flag for each field of a dataclass of engine settings."""
    group = parser.add_argument_group("engine")
    add_field_flags(group, owner, {"model": "a model folder, or demo", **ENGINE_HELP})
    return parser


def given_settings(args: argparse.Namespace, owner: type[Any]) -> dict[str, Any]:
    """The settings among parsed flags, by jengine's names and by vLLM's."""
    names = {*(item.name for item in fields(owner)), *RENAMED, *SPECULATION, *VLLM_SETTINGS}
    given = {name: value for name, value in vars(args).items() if name in names}
    if given.get("model") is None:
        raise ConfigError("--model is missing: give a model folder, or demo.")
    return given
