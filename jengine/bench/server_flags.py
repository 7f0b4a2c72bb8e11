"""Flags of the benches that run servers: the fields of their settings, and those that all have.

In: a class of settings, words. Out: the settings; flags of `jengine serve` come after two dashes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import field, fields
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def flag(default: Any, text: str, kind: type | None = None) -> Any:
    """A field of settings that is a flag, with its default and its help."""
    return field(default=default, metadata={"help": text, "type": kind or type(default)})


def parsed(
    settings: Callable[..., T], words: Sequence[str], module: str, about: str, log: tuple[str, str]
) -> tuple[argparse.Namespace, T]:
    """What was given, and the settings. `log`: the flag of where logs are kept, and its help."""
    cut = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=about,
        epilog="Flags of `jengine serve` come after --, such as: -- --max-num-seqs 64",
    )
    parser.add_argument("model", nargs="?", default="demo", help="a model folder, or demo")
    flags = [one for one in fields(settings) if "help" in one.metadata]  # type: ignore[arg-type]
    for one in flags:
        shown = "" if one.default is None else f" [{one.default:g}]"
        parser.add_argument(
            "--" + one.name.replace("_", "-"), default=one.default, type=one.metadata["type"],
            help=one.metadata["help"] + shown,
        )  # fmt: skip
    parser.add_argument(log[0], type=Path, help=log[1])
    parser.add_argument("--output-json", type=Path, help="also write the JSON to a file")
    given = parser.parse_args(words[:cut])
    own = {one.name: getattr(given, one.name) for one in flags}
    return given, settings(model=given.model, flags=tuple(words[cut + 1 :]), **own)
