"""Flags for argparse, made from the fields of a dataclass. No jax.

In: a parser and a text of help per field. Out: flags on it, whose values are typed and checked;
what was not given is absent from the namespace. Must not know commands.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields
from types import MappingProxyType
from typing import Any, get_args

from jengine.assembly.settings.flag_values import flag_settings
from jengine.assembly.settings.values import field_types


def flag_of(name: str) -> str:
    """The flag of a setting."""
    return "--" + name.replace("_", "-")


def add_field_flags(
    group: argparse._ArgumentGroup,
    owner: type[Any],
    helps: Mapping[str, str],
    short: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Flags for some fields of a dataclass, by their type. What is not given stays absent."""
    types = field_types(owner)
    by_name = {field.name: field for field in fields(owner)}
    for name, text in helps.items():
        flags = [flag_of(name), *([short[name]] if name in short else [])]
        common = {"dest": name, "default": argparse.SUPPRESS, "help": text}
        if bool in (types[name], *get_args(types[name])):
            add_switch(group, flags, by_name[name].default is not False, common)
            continue
        if not text.endswith("]"):
            common["help"] = text + shown_default(by_name[name])
        group.add_argument(*flags, **common, **flag_settings(name, types[name]))


def add_switch(
    group: argparse._ArgumentGroup, flags: Sequence[str], usually_on: bool, common: dict[str, Any]
) -> None:
    """--flag and --no-flag; help shows the one that changes something."""
    flag, *others = flags
    other = flag.replace("--", "--no-", 1)
    shown, hidden = (other, flag) if usually_on else (flag, other)
    for spelling in (shown, hidden):
        action = "store_false" if spelling == other else "store_true"
        names = [spelling] if spelling == other else [spelling, *others]
        group.add_argument(*names, action=action, **common)
        common = {**common, "help": argparse.SUPPRESS}


def shown_default(field: Field[Any]) -> str:
    """The default in brackets for a flag's help; "" if it has none."""
    if field.default in (None, MISSING, ()):
        return ""
    told = " ".join(field.default) if isinstance(field.default, tuple) else field.default
    return f" [{told}]"
