"""Every name that an example imports from this project is there, and public.

CI runs the examples themselves; this says at once when a move has left one behind.
"""

from __future__ import annotations

import ast
import html
import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import jengine
from jengine.vllm_names import PATHS

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
OURS = ("jengine", "sharding", "pallas_kernels")
FILES = sorted(EXAMPLES.rglob("*.py"))


# Where users find names: at the top, what families are described in, and where vLLM has them.
PUBLIC = {"jengine", "jengine.models.family", "jengine.outputs", "jengine.sampling_params"}
PUBLIC |= {f"jengine.{path}" for path in PATHS}
# Makes the model that the package ships: part of the project, and no example of its use.
WORKSHOP = EXAMPLES / "demo_model"


def imported(file: Path) -> list[tuple[str, list[str]]]:
    """Modules of ours that a file imports, and the names that it takes of each."""
    found = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            found.append((str(node.module), [alias.name for alias in node.names]))
        elif isinstance(node, ast.Import):
            found += [(alias.name, []) for alias in node.names]
    return [(module, names) for module, names in found if module.split(".")[0] in OURS]


@pytest.mark.parametrize("file", FILES, ids=[str(file.relative_to(EXAMPLES)) for file in FILES])
def test_imported_names_exist(file: Path) -> None:
    for name, names in imported(file):
        module = importlib.import_module(name)
        assert [one for one in names if not hasattr(module, one)] == [], name


def test_examples_use_public_names_alone() -> None:
    inner = {
        str(file.relative_to(EXAMPLES)): modules
        for file in FILES
        if WORKSHOP not in file.parents
        if (modules := {module for module, _ in imported(file)} - PUBLIC)
    }
    assert inner == {}


@pytest.mark.parametrize(
    "file", sorted((EXAMPLES / "notebooks").glob("*.py")), ids=lambda file: file.stem
)
def test_notebooks_name_their_kernel(file: Path) -> None:
    """Without it jupytext looks for one that belongs to its own interpreter, and may find none."""
    assert "#   kernelspec:\n" in file.read_text(encoding="utf-8").split("# %%")[0]


def test_the_comparison_without_torch_is_the_kept_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook = (EXAMPLES / "notebooks" / "compare_with_torch.py").read_text(encoding="utf-8")
    (cell,) = [one for one in notebook.split("# %%") if "def kept_page" in one]
    *statements, shown = ast.parse(cell).body
    monkeypatch.chdir(EXAMPLES / "notebooks")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(HTML=lambda text: text))
    names: dict[str, Any] = {
        "given": None, "html": html, "importlib": importlib, "jengine": jengine, "Path": Path,
    }  # fmt: skip
    exec(compile(ast.Module(statements, []), "cell", "exec"), names)
    assert isinstance(shown, ast.Expr)
    page = html.unescape(eval(compile(ast.Expression(shown.value), "cell", "eval"), names))
    assert "SmolLM2-135M-Instruct" in page and "jengine from the truth" in page
    assert "this comparison was kept" in capsys.readouterr().out
