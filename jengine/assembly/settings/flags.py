"""argparse flags made from the fields of a dataclass. No jax.

In: a parser and a help text per field. Out: flags on it, whose values are typed and checked; flags
not given are absent from the namespace. Must not know commands.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin

from jengine.assembly.settings.values import field_types, human_integer
from jengine.assembly.settings.vllm_tuning import nearest
from jengine.errors import ConfigError


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def add_field_flags(
    group: argparse._ArgumentGroup,
    owner: type[Any],
    helps: Mapping[str, str],
    short: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Add flags for fields of a dataclass, by their type. Flags not given stay absent."""
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
    """Add --flag and --no-flag; help shows the one that changes the default."""
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


# Lists of strings that may contain commas and brackets: each word is one entry.
VERBATIM = ("api_key", "admin_key", "lora_modules", "lora_dirs", "served_model_name")
# JSON objects whose type is Any.
OBJECTS = ("pooler_config",)
# Keys of compilation_config with a single value.
ONE_WORD = ("cache_dir", "wait_for", "max_adjusted_seqs", "encoder_tokens", "capture_collectives",
            "matmuls", "short_graphs")  # fmt: skip


def flag_settings(name: str, kind: Any) -> dict[str, Any]:
    """The argparse settings for a field of this type."""
    parts = get_args(kind) or (kind,)
    origins = {get_origin(part) or part for part in (kind, *parts)}
    if get_origin(kind) is Literal:
        choices = tuple(str(part).lower() for part in parts)
        return {"choices": choices, "type": functools.partial(nearest, "jengine", name)}
    if name == "compilation_config":
        return {"action": MergeObjects, "type": checked(json_object), "metavar": "JSON"}
    if Mapping in origins or name in OBJECTS:
        return {"action": MergeObjects, "type": checked(options_object), "metavar": "JSON"}
    if name == "stop":
        return {"action": "append", "metavar": "TEXT"}
    if origins & {Sequence, tuple, list}:
        read = one_word if name in VERBATIM else checked(words_of)
        return {"nargs": "+", "action": JoinWords, "type": read, "metavar": "TEXT"}
    if int in parts:
        return {"type": checked(functools.partial(whole_number, name)), "metavar": "N"}
    if float in parts:
        return {"type": float, "metavar": "X"}
    return {"metavar": "TEXT"}


class JoinWords(argparse.Action):
    """argparse action: collect the values of all words of a flag."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        before = vars(namespace).get(self.dest, [])
        setattr(namespace, self.dest, [*before, *(one for part in values for one in part)])


def one_word(text: str) -> list[str]:
    """Return the word as its only value."""
    return [text]


def words_of(text: str) -> list[str]:
    """Parse a JSON list of strings, or a comma-separated one."""
    if not text.lstrip().startswith(("[", "{")):
        words = [word.strip() for word in text.split(",")]
    else:
        words = json_or_text(text)
    if not isinstance(words, list) or not all(isinstance(one, str) and one for one in words):
        raise ConfigError(f"{text!r}: expected words, words with commas, or a JSON list of texts.")
    return words


class MergeObjects(argparse.Action):
    """argparse action: merge the JSON objects of a repeated flag."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, {**vars(namespace).get(self.dest, {}), **values})


def checked(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Wrap a parser for argparse, which shows messages of one exception class only."""

    def reader(text: str) -> Any:
        try:
            return read(text)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return reader


def whole_number(name: str, text: str) -> int | None:
    """Read an integer: plain, signed, or with a suffix such as 32k."""
    try:
        return int(text)
    except ValueError:
        return human_integer(name, text)


def json_object(text: str) -> dict[str, Any]:
    """Read a JSON object; strings in it may be JSON or comma-separated lists."""
    return {key: plain_value(key, value) for key, value in free_object(text).items()}


def options_object(text: str) -> dict[str, Any]:
    """Read a JSON object of arbitrary keys; strings in it may be JSON."""
    return {key: json_or_text(value) for key, value in free_object(text).items()}


def json_or_text(value: Any) -> Any:
    """Decode a string that is JSON; return anything else unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def free_object(text: str) -> dict[str, Any]:
    """Decode a JSON object without checking its values."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{text!r}: expected a JSON object ({error}).") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{text!r}: expected a JSON object.")
    return found


def plain_value(key: str, value: Any) -> Any:
    """Parse the value of `--flag.KEY VALUE`: one value for keys in ONE_WORD, else a list."""
    value = json_or_text(value)
    if isinstance(value, str) and key not in ONE_WORD:
        value = [plain_word(part) for part in value.split(",")]
    return value if key in ONE_WORD or isinstance(value, list) else [value]


def plain_word(text: str) -> str | int:
    """Parse an entry of a comma-separated list."""
    text = text.strip()
    return int(text) if text.isdecimal() else text
