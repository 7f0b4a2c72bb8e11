"""Chooses the slow tests that CI runs: what the last commits can reach, and a share of the rest.

    python .ci/choose_tests.py                     slow test files, one per line
    python .ci/choose_tests.py --all               every slow test file
    python .ci/choose_tests.py --reaches PATH...   "yes" if the commits reach one of these, or "no"
    python .ci/choose_tests.py --record XML...     keep the seconds of each file (JUnit reports)

A file is reached if it imports a changed file, directly or through others. The nearest files come
first, and of those as near the quickest, as far as their recorded seconds fit the budget. Of the
rest one part in SHARES runs each day, within a budget of its own.
Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
from collections import defaultdict, deque
from collections.abc import Container, Iterable, Iterator, Mapping
from datetime import date
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
SECONDS = Path(__file__).with_name("slow_seconds.json")
FOLDERS = ("jengine", "pallas_kernels", "sharding", "tests", "examples")
# What belongs to one piece of work: commits so many seconds before the last one.
WINDOW = 12 * 3600
# Seconds of tests, of which two run at once: with all other steps CI stays below an hour.
BUDGET = 900.0
SHARE_BUDGET = 300.0
# For a file whose seconds are not recorded yet: the median of those that are.
USUAL_SECONDS = 30.0
SHARES = 5
# Changes of these reach everything, from far.
EVERYTHING = ("pyproject.toml", "tests/conftest.py", ".ci/run")
DOTTED = re.compile(r"\b(?:jengine|pallas_kernels|sharding|tests|examples)(?:\.\w+)+")
# A module whose name is put together at run time: f"jengine.cli.{command}".
FORMATTED = re.compile(r"\b(jengine(?:\.\w+)+)\.\{")
# Its names are loaded when they are first used: who uses one depends on the file it is from.
FACADE = Path("jengine/__init__.py")


def files() -> tuple[Path, ...]:
    """Every Python file of the project, relative to its root."""
    found = (file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py"))
    return tuple(sorted(file.relative_to(ROOT) for file in found))


@cache
def importers(known: tuple[Path, ...]) -> dict[Path, set[Path]]:
    """File -> the files that import it."""
    modules = {module_of(file): file for file in known}
    for name, module in public_names().items():
        modules[f"jengine.{name}"] = modules[module]
    found: dict[Path, set[Path]] = defaultdict(set)
    for file in set(modules.values()) - {FACADE}:
        for imported in imports(file, modules):
            found[imported].add(file)
    return found


def public_names() -> dict[str, str]:
    """Public name -> module, as the facade has them."""
    for node in ast.walk(ast.parse((ROOT / FACADE).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_HOMES":
            return ast.literal_eval(node.value)
    raise SystemExit(f"{FACADE} has no table _HOMES of its public names")


def module_of(file: Path) -> str:
    parts = file.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(file: Path, modules: Mapping[str, Path]) -> Iterator[Path]:
    """What a file imports, names in a string or after `python -m`, and uses as a fixture."""
    source = (ROOT / file).read_text(encoding="utf-8")
    names = set(DOTTED.findall(source))
    for package in FORMATTED.findall(source):
        names.update(name for name in modules if name.startswith(f"{package}."))
    for node in statements(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
            names.add(node.module)
    for name in names:
        while name and name not in modules:  # a name in a module, not a module
            name = name.rpartition(".")[0]
        if name:
            yield modules[name]
    if file.parts[0] == "tests":
        # But for the one of all tests, through which every test would be reached.
        for folder in file.parents[:-2]:
            fixtures = folder / "conftest.py"
            if fixtures != file and (ROOT / fixtures).is_file():
                yield fixtures


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Every statement, also inside functions, and no expression: there are ten times as many."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, part, ())
            if isinstance(inner, list):  # a lambda has an expression there
                waiting.extend(inner)


def distances(changed: Iterable[Path], known: tuple[Path, ...]) -> dict[Path, int]:
    """Each reached file, and over how many imports."""
    above = importers(known)
    found = dict.fromkeys(changed, 0)
    waiting = deque(found)
    while waiting:
        file = waiting.popleft()
        for importer in above.get(file, ()):
            if importer not in found:
                found[importer] = found[file] + 1
                waiting.append(importer)
    if any(str(file) in EVERYTHING for file in found):
        far = max(found.values()) + 1
        found |= {file: far for file in known if file not in found}
    return found


def changed_files() -> Iterable[Path]:
    """Files that the last commits changed; those that are data count as the package around them."""
    begin = int(git("log", "-1", "--format=%ct")) - WINDOW
    base = git("rev-list", "-1", f"--before={begin}", "HEAD")
    base = base or git("rev-list", "--max-parents=0", "HEAD").splitlines()[-1]
    names = git("diff", "--name-only", base, "HEAD").splitlines()
    return sorted({package_of(Path(name)) for name in names})


def package_of(file: Path) -> Path:
    if file.suffix == ".py" or str(file) in EVERYTHING:
        return file
    around = (folder / "__init__.py" for folder in file.parents)
    return next((one for one in around if (ROOT / one).is_file()), file)


def git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def slow_files(known: Iterable[Path]) -> list[Path]:
    """Test files with slow tests."""
    return [
        file
        for file in known
        if file.name.startswith("test_")
        and "mark.slow" in (ROOT / file).read_text(encoding="utf-8")
    ]


def chosen(
    slow: list[Path],
    near: Mapping[Path, int],
    seconds: Mapping[str, float],
    budget: float,
    day: int,
) -> list[Path]:
    """The nearest files that fit the budget, and those of today's share of the others that fit
    theirs. A file that does not fit is passed over, and others come after it."""

    def takes(file: Path) -> float:
        return seconds.get(str(file), USUAL_SECONDS)

    def fitting(files: Iterable[Path], left: float) -> Iterator[Path]:
        for file in files:
            if takes(file) <= left:
                left -= takes(file)
                yield file

    reached = sorted((file for file in slow if file in near), key=lambda f: (near[f], takes(f)))
    kept = list(fitting(reached, budget))
    rest = [file for file in slow if file not in kept]
    return sorted([*kept, *fitting(rest[day % SHARES :: SHARES], SHARE_BUDGET)])


def recorded() -> dict[str, float]:
    """Test file -> seconds of its slow tests, as far as they are known."""
    return json.loads(SECONDS.read_text("utf-8")) if SECONDS.is_file() else {}


def record(reports: Iterable[Path], known: Iterable[Path]) -> None:
    """Keep the seconds of each test file in these reports, beside those of files not in them."""
    files = {module_of(file): str(file) for file in known if file.name.startswith("test_")}
    seconds: dict[str, float] = defaultdict(float)
    for report in reports:
        for case in ElementTree.parse(report).iter("testcase"):
            seconds[files[module_of_case(case, files)]] += float(case.get("time", 0))
    kept = {file: spent for file, spent in recorded().items() if file in files.values()}
    rounded = {file: round(spent, 1) for file, spent in seconds.items()}
    SECONDS.write_text(json.dumps(kept | rounded, indent=1, sort_keys=True) + "\n", "utf-8")


def module_of_case(case: ElementTree.Element, modules: Container[str]) -> str:
    """The module of a reported test, which may be in a class, or be a module that was skipped."""
    reported = name = case.get("classname") or case.get("name", "")
    while name not in modules:
        if not name:
            raise SystemExit(f"{reported} is in no test file")
        name = name.rpartition(".")[0]
    return name


def main() -> None:
    """Print what was chosen, or answer whether something is reached."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--budget", type=float, default=BUDGET)
    parser.add_argument("--reaches", nargs="+", type=Path)
    parser.add_argument("--record", nargs="+", type=Path)
    wanted = parser.parse_args()
    known = files()
    if wanted.record:
        record(wanted.record, known)
        return
    slow = slow_files(known)
    if wanted.all:
        print("\n".join(map(str, slow)))
        return
    near = distances(changed_files(), known)
    if wanted.reaches:
        print("yes" if any(file in near for file in wanted.reaches) else "no")
        return
    today = date.fromisoformat(git("log", "-1", "--format=%cs")).toordinal()
    print("\n".join(map(str, chosen(slow, near, recorded(), wanted.budget, today))))


if __name__ == "__main__":
    main()
