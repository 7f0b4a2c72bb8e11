"""Reads flags from a YAML file, as vLLM's `--config`.

In: a parser, the parsed command line, and a file. Out: the namespace with the file's values for
flags not on the command line. Must not know flags.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from jengine.assembly.settings.flags import flag_of
from jengine.cli.parser import Parser
from jengine.errors import ConfigError


def with_config_file(parser: Parser, arguments: argparse.Namespace, file: str) -> Any:
    """Merge the file's values; the command line takes precedence."""
    words = list[str]()
    parser.where = f"{file}: "
    for name, value in content(file).items():
        if isinstance(value, list) and not parser.takes_several(flag_of(name)):
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
    """Parse the file. Raises ConfigError."""
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
    """A YAML value as command-line words; none for null."""
    if isinstance(value, bool):
        return [flag_of(name if value else f"no-{name}")]
    if isinstance(value, list):
        return [word for one in value for word in words_of(name, one)]
    if isinstance(value, Mapping):
        return [f"{flag_of(name)}={json.dumps(value)}"]
    return [] if value is None else [f"{flag_of(name)}={value}"]
