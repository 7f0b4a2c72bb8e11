"""Every setting, on a command line, in a YAML file and from Python: read, or refused at once."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
import pytest

from jengine.assembly.settings.args import ENGINE_HELP, EngineArgs
from jengine.assembly.settings.flags import VERBATIM, flag_settings
from jengine.assembly.settings.values import check_types, field_types, fits
from jengine.cli import serve
from jengine.cli.main import command_parser, main, with_config_file
from jengine.cli.serving.flags import SERVER_HELP
from jengine.cli.terminal import Terminal
from jengine.errors import ConfigError, UnsupportedFeature
from jengine.server.settings import ServerSettings

OWNERS = {EngineArgs: ENGINE_HELP, ServerSettings: SERVER_HELP}
SETTINGS = [
    pytest.param(owner, field, id=f"{owner.__name__}.{field.name}")
    for owner, helps in OWNERS.items()
    for field in fields(owner)
    if field.name in helps
]
LISTS = [
    one
    for one in SETTINGS
    if flag_settings(one.values[1].name, field_types(one.values[0])[one.values[1].name])
    .get("nargs") == "+"
]  # fmt: skip
WORDS = ["one:a", "two:b"]  # of lists of any kind: functions are given as package.module:name


def kinds(owner: type, field: Field[Any]) -> list[Any]:
    """The types that a setting may have, but None."""
    kind = field_types(owner)[field.name]
    parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return [part for part in parts if part is not NoneType]


def example(owner: type, field: Field[Any]) -> tuple[Any, Any]:
    """A value as the first type of a setting has it, and one of no type of it."""
    first = kinds(owner, field)[0]
    if get_origin(first) is Literal:
        return get_args(first)[-1], object()
    if get_origin(first) in (tuple, list, Sequence):
        return WORDS, "one:a"
    if field.name == "compilation_config":
        return {"decode_rows": [1, 2]}, ["a"]
    if get_origin(first) is Mapping:
        return {"a": 1 if get_args(first)[1] is int else "x"}, ["a"]
    if field.name == "pooler_config":
        return {"a": "x"}, None
    examples = {bool: (field.default is not True, "yes"), int: (3, "x"), float: (0.5, "x"),
                str: ("x", ["x"]), Path: ("x", ["x"]), Any: ("x", None)}  # fmt: skip
    return examples[first]


def read(*words: str) -> dict[str, Any]:
    terminal = Terminal(io.StringIO(), io.StringIO(), io.StringIO())
    parser = command_parser("serve", serve, terminal)  # type: ignore[arg-type]
    arguments = parser.parse(["demo", *words])
    if arguments.config is not None:
        arguments = with_config_file(parser, arguments, arguments.config)
    return vars(arguments)


def written(name: str, value: Any) -> list[str]:
    flag = "--" + name.replace("_", "-")
    if isinstance(value, bool) and name != "pack_weights":
        return [flag if value else flag.replace("--", "--no-", 1)]
    if isinstance(value, list):
        return [flag, *value]
    text = str(value).lower() if value is False else value
    return [flag, json.dumps(value) if isinstance(value, dict) else str(text)]


def in_file(folder: Path, **given: Any) -> str:
    file = folder / "settings.yaml"
    file.write_bytes(msgspec.yaml.encode(given))
    return str(file)


@pytest.mark.parametrize(("owner", "field"), SETTINGS)
def test_a_setting_is_read_in_every_way(owner: type, field: Field[Any], tmp_path: Path) -> None:
    value, wrong = example(owner, field)
    kind = field_types(owner)[field.name]
    shown = "false" if field.name == "pack_weights" else value
    ways = [
        read(*written(field.name, value)),
        read("--config", in_file(tmp_path, **{field.name: shown})),
        read("--config", in_file(tmp_path, **{field.name.replace("_", "-"): shown})),
    ]
    for found in ways:
        assert found[field.name] == shown, "as it was written"
        assert fits(found[field.name], kind) or found[field.name] in ("false", value)
    if wrong is not None:
        assert not fits(wrong, kind)


@pytest.mark.parametrize(("owner", "field"), LISTS)
def test_a_list_is_words_or_has_commas_or_is_json(owner: type, field: Field[Any]) -> None:
    flag = "--" + field.name.replace("_", "-")
    assert read(flag, *WORDS)[field.name] == WORDS
    assert read(flag, WORDS[0], flag, WORDS[1])[field.name] == WORDS
    for text in (",".join(WORDS), json.dumps(WORDS)):
        assert read(flag, text)[field.name] == ([text] if field.name in VERBATIM else WORDS)
    if field.name not in VERBATIM:
        for text in ("[1, 2]", "[", "a,,b", "", '{"a": 1}'):
            with pytest.raises(SystemExit):
                read(flag, text)


@pytest.mark.parametrize(("owner", "field"), SETTINGS)
def test_another_type_is_refused_before_anything_is_loaded(owner: type, field: Field[Any]) -> None:
    _, wrong = example(owner, field)
    if wrong is None:
        return  # the setting takes what tokenizers, devices and functions are
    with pytest.raises((ConfigError, UnsupportedFeature), match=field.name):
        if owner is EngineArgs:
            EngineArgs("demo", **{field.name: wrong})
        else:
            check_types(ServerSettings(**{field.name: wrong}))


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--allowed-media-domains", "https://a.org/x"], "expected names or addresses of hosts"),
        (["--allowed-media-domains", "a.org b.org"], "expected names or addresses of hosts"),
        (["--allowed-local-media-path", "/no/such/folder"], "expected a folder"),
        (["--limit-mm-per-prompt.pictures", "3"], "limit_mm_per_prompt has 'pictures'"),
        (["--limit-mm-per-prompt.image", "-3"], "limit_mm_per_prompt has 'image'"),
        (["--limit-mm-per-prompt.image", "x"], "expected a number for 'image'"),
        (["--config", "/no/such/file"], "No such file"),
    ],
)
def test_wrong_values_end_the_program_before_a_core_starts(
    words: list[str], complaint: str
) -> None:
    error = io.StringIO()
    terminal = Terminal(io.StringIO(), io.StringIO(), error)
    assert main(["serve", "/no/such/model", *words], terminal=terminal) == 1
    assert complaint in error.getvalue()


def test_the_command_line_goes_before_the_file(tmp_path: Path) -> None:
    file = in_file(tmp_path, port=1, allowed_media_domains=["a"], enforce_eager=True, model="m",
                   api_server_count=2, seed=None, strict=False)  # fmt: skip
    found = read("--config", file, "--port", "2", "--allowed-media-domains", "b")
    assert (found["port"], found["allowed_media_domains"]) == (2, ["b"])
    assert found["enforce_eager"] and found["api_server_count"] == 2
    assert found["model"] == "demo" and found["model_flag"] == "m"
    assert found["strict"] is False and "seed" not in found


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("prot: 1", "unknown flag --prot. Did you mean '--port'?"),
        ("port: [1, 2]", "port is a list; expected one value"),
        ("port: x", "--port"),
        ("allowed_origins: {a: 1}", "expected words"),
        ("- port", "expected YAML with a value for each flag"),
        ("port: [", "expected YAML with a value for each flag"),
    ],
)
def test_a_file_that_is_wrong(text: str, complaint: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    error = io.StringIO()
    terminal = Terminal(io.StringIO(), io.StringIO(), error)
    try:
        assert main(["serve", "demo", "--config", str(file)], terminal=terminal) == 1
    except SystemExit as end:
        assert end.code == 2
    assert str(file) in error.getvalue() and complaint in error.getvalue()
