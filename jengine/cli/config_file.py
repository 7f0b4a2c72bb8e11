"""Flags in a YAML file, under their names, as vLLM's `--config` reads them.

In: a parser, what it read from the command line, and a file. Out: the same namespace with the
file's values for flags that the command line does not have. Must not know flags.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from jengine.cli.parser import Parser
from jengine.errors import ConfigError


def with_config_file(parser: Parser, arguments: argparse.Namespace, file: str) -> Any:
    """The namespace; the command line's own values go before the file's."""
    words = list[str]()
    parser.where = f"{file}: "
    for name, value in content(file).items():
        if isinstance(value, list) and not parser.takes_several(flag(name)):
            parser.error(f"{name} is a list; expected one value.")
        words += words_of(name, value)
    found = vars(parser.parse(words))
    parser.where = ""
    for name, value in found.items():
        if vars(arguments).get(name, argparse.SUPPRESS) in (parser.get_default(name),
                                                            argparse.SUPPRESS):  # fmt: skip
            setattr(arguments, name, value)
    return arguments


def content(file: str) -> dict[str, Any]:
    """The values of a file by the names of their flags."""
    try:
        return msgspec.yaml.decode(Path(file).read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise ConfigError(f"--config {file}: {error.strerror}.") from None
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"--config {file}: expected YAML with a value for each flag, such as `port: 8000` "
            f"({error})."
        ) from None


def words_of(name: str, value: Any) -> list[str]:
    """A flag as words of a command line; none where the value is null."""
    if isinstance(value, bool):
        return [flag(name if value else f"no-{name}")]
    if isinstance(value, list):
        return [word for one in value for word in words_of(name, one)]
    if isinstance(value, Mapping):
        return [f"{flag(name)}={json.dumps(value)}"]
    return [] if value is None else [f"{flag(name)}={value}"]


def flag(name: str) -> str:
    """The flag of a name with dashes or underscores."""
    return "--" + name.replace("_", "-")
