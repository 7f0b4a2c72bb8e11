"""What of jengine.bench is in the wheel: what commands reach, and the check of a GPU."""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "jengine" / "bench"
NAMED = re.compile(r"jengine\.bench(?:\.\w+)*|\w+_peer(?=\.py)")


def is_left_out(file: Path) -> bool:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    patterns = wheel["tool"]["hatch"]["build"]["targets"]["wheel"]["exclude"]
    names = [one.relative_to(ROOT).as_posix() for one in (file, *file.parents) if one != ROOT
             and ROOT in one.parents]  # fmt: skip
    return any(fnmatch(name, pattern) for name in names for pattern in patterns)


def code(file: Path) -> str:
    """A file without what it tells people to run."""
    text = re.sub(r'\A""".*?"""', "", file.read_text("utf-8"), flags=re.DOTALL)
    return re.sub(r"python -m [\w.]+", "", text)


def named(file: Path) -> set[Path]:
    """The files of jengine.bench that a file imports, or names to run them."""
    text = code(file)
    found = set(NAMED.findall(text))
    for module, names in re.findall(r"from (jengine\.bench[\w.]*) import \(?([\w\s,]+)", text):
        found |= {f"{module}.{name}" for name in re.findall(r"\w+", names)}
    files: set[Path] = set()
    for name in found:
        place = BENCH / "peers" / name if "." not in name else ROOT / name.replace(".", "/")
        files |= {one for one in (place.with_suffix(".py"), place / "__init__.py") if one.is_file()}
    return files


def reached() -> set[Path]:
    outside = [one for one in (ROOT / "jengine").rglob("*.py") if BENCH not in one.parents]
    found: set[Path] = set()
    new = set((BENCH / "gpu").rglob("*.py")).union(*map(named, outside))
    while new:
        found |= new
        new = set().union(*map(named, new)) - found
    folders = {folder for file in found for folder in file.parents if BENCH in folder.parents}
    return found | {folder / "__init__.py" for folder in (BENCH, *folders)}


def test_the_wheel_has_what_commands_reach_of_the_benchmarks() -> None:
    needed = reached()
    kept = {one for one in BENCH.rglob("*.py") if not is_left_out(one)}
    assert needed - kept == set(), "excluded, though something needs it"
    assert kept - needed == set(), "in the wheel, though no command reaches it"
