"""EngineArgs ends at the door: rooms take the groups of settings that they need."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import jengine
from jengine.assembly.settings.args import EngineArgs

CEILING = 15  # functions that take EngineArgs; may only fall


def takers(tree: ast.AST) -> Iterator[str]:
    """The functions with a parameter of this type, methods of EngineArgs aside."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            kinds = [ast.unparse(one.annotation) for one in given if one.annotation is not None]
            if any("EngineArgs" in kind for kind in kinds):
                yield node.name


def test_few_functions_take_all_settings() -> None:
    package = Path(jengine.__file__).parent
    sources = {file: file.read_text(encoding="utf-8") for file in sorted(package.rglob("*.py"))}
    found = [
        f"{file.relative_to(package)}: {name}"
        for file, source in sources.items()
        if "EngineArgs" in source
        for name in takers(ast.parse(source))
    ]
    assert len(found) <= CEILING, "take one of the groups instead:\n" + "\n".join(found)


def test_groups_are_frozen_and_show_no_secret() -> None:
    groups = EngineArgs("any", data_parallel_secret="a secret of the hosts").groups
    with pytest.raises(AttributeError):
        groups.cache.block_size = 1  # type: ignore[misc]
    assert "a secret" not in repr(groups)


def test_settings_in_use_are_called_as_users_write_them() -> None:
    plain, busy = EngineArgs("any").groups, EngineArgs("any", enable_lora=True, strict=True).groups
    names = ("executor", "num_scheduler_steps", "strict", "enable_lora")
    assert not any(plain.in_use(*names).values())
    assert busy.in_use(*names) == {
        "executor='auto'": False,
        "num_scheduler_steps=1": False,
        "strict=True": True,
        "enable_lora": True,
    }
