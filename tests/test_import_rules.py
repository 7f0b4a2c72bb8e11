"""Who may import whom: two halves that meet in the runner, rooms in one order, leaves alone.

The tables below are the rules. A new room needs a line of its own here.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.api.engines import SMALL_DEMO

ROOT = Path(__file__).parent.parent
PACKAGES = ("jengine", "pallas_kernels", "sharding")

# Room -> rooms it may import. "nouns" are the files at the top of jengine/, and those of `config`.
NOUN_FOLDERS = {"config"}
HOST_HALF = {
    "nouns": {"pictures"},
    "confined": {"nouns", "wire"},
    "text": {"nouns", "confined"},
    "connectors": {"nouns", "wire"},
    "kvcache": {"nouns", "connectors"},
    "grammar": {"nouns", "text", "confined"},
    "media": {"nouns", "confined"},
    "speculative": {"nouns"},
    "scheduler": {"nouns", "kvcache", "speculative", "connectors"},
}
DEVICE_HALF = {
    "layers": {"nouns"},
    "sampling": {"nouns", "pallas_kernels"},
    "quantization": {"nouns", "layers", "pallas_kernels", "sharding"},
    "models": {"nouns", "layers", "quantization"},
    "weights": {"nouns", "layers", "models", "quantization", "sharding", "demo", "hub"},
    "lora": {"nouns", "models", "quantization", "weights", "sharding", "pallas_kernels"},
}
LEAVES: dict[str, set[str]] = {"pallas_kernels": set(), "sharding": set()}
WIRE: dict[str, set[str]] = {"wire": {"nouns"}}
# Pages for people: knows nothing of ours, and only those who report use it.
PICTURES: dict[str, set[str]] = {"pictures": set()}
BELOW_ENGINE = {
    "nouns",
    *HOST_HALF,
    *DEVICE_HALF,
    *LEAVES,
    "wire",
    "pictures",
    "runner",
    "executor",
    "hub",
}
BELOW_API = {*BELOW_ENGINE, "metrics", "engine", "distributed", "assembly"}
ABOVE_API = {*BELOW_API, "api"}
ALLOWED = {
    **HOST_HALF,
    **DEVICE_HALF,
    **LEAVES,
    **WIRE,
    **PICTURES,
    "demo": set(),
    # Talks with servers: knows no engine.
    "client": {"nouns"},
    # Finds and downloads files: knows not what is in them.
    "hub": {"nouns"},
    "runner": {"nouns", "connectors", *DEVICE_HALF, *LEAVES},
    "executor": {"nouns", "runner", "grammar", "sampling", "sharding", "wire"},
    "metrics": {"nouns"},
    "engine": {*BELOW_ENGINE, "metrics"},
    "distributed": {*BELOW_ENGINE, "engine"},
    "assembly": BELOW_API - {"assembly"},
    "api": BELOW_API,
    "routing": {"nouns", "client", "distributed", "wire"},
    "bench": {*ABOVE_API, "client", "integrations", "research"},
    "research": ABOVE_API,
    "capacity": {*ABOVE_API, "bench", "client"},
    "server": ABOVE_API,
    "integrations": {*ABOVE_API, "routing", "server"},
    # The hook that makes parts of the documentation.
    "docs": {"nouns", "assembly", "cli", "models", "pictures", "server", "pallas_kernels"},
    "cli": {
        *ABOVE_API,
        "demo",
        "capacity",
        "bench",
        "client",
        "research",
        "server",
        "routing",
    },
}  # fmt: skip
# Rooms of the runner -> those that each may import. "top" is the files right below it;
# report_types is plain data that both sides of the executor read.
RUNNER: dict[str, set[str]] = {
    "report_types": set(),
    "variants": set(),
    "disk": set(),
    "memory": set(),
    "step": {"variants"},
    "plans": {"variants", "step"},
    "programs": {"report_types", "variants", "memory", "step"},
    "transfers": {"report_types", "variants", "step", "top"},
    "top": {"report_types", "variants", "disk", "memory", "step", "plans", "programs"},
}
# Rooms of the server, in the same way. "nouns" are the files right below it that all may read.
SERVER_NOUNS = {"errors", "settings", "version", "phase"}
SERVER: dict[str, set[str]] = {
    "nouns": set(),
    "http": {"nouns"},
    "formats": {"nouns"},
    "peers": {"nouns"},
    "serving": {"nouns", "http", "peers"},
    "completions": {"nouns", "http", "formats", "serving"},
    "chat": {"nouns", "http", "formats", "serving"},
    "pooling": {"nouns", "http", "formats", "serving"},
    "audio": {"nouns", "http", "formats", "serving"},
    "responses": {"nouns", "http", "formats", "serving", "chat"},
    "messages": {"nouns", "http", "formats", "serving", "chat", "responses"},
    "routes": {"nouns", "http", "formats", "serving", "chat"},
    "batches": {"nouns", "http", "serving"},
    "top": {
        "nouns", "http", "formats", "peers", "serving", "completions", "chat", "responses",
        "messages", "routes", "pooling", "audio", "batches",
    },
}  # fmt: skip
# The nouns that the device half may know: shapes and errors, never who asked for what.
DEVICE_NOUNS = {"jengine.config", "jengine.errors", "jengine.weight_formats"}
# Libraries that only some rooms may import.
DEVICE_LIBRARIES = {"jax", "flax", "orbax"}
# Programs of their own, which nothing imports: torch may be there.
OTHER_PROCESSES = {
    "jengine.research.torch_reference",
    "jengine.bench.fidelity.reference",
    "jengine.bench.gpu.torch_peer",
    "jengine.bench.peers.embeddings_peer",
    "jengine.bench.peers.images_peer",
    "jengine.bench.peers.llama_cpp_peer",
    "jengine.bench.peers.transformers_peer",
    "jengine.bench.peers.vllm_peer",
}
RUNS_CODE = {"torch", "pickle", "dill", "cloudpickle", "_pickle"}

# Exceptions: (importing module, imported module) -> why.
EXCEPTIONS = {
    ("jengine", "*"): "public names, loaded when they are first used",
    ("jengine.__main__", "jengine.cli.main"): "the command line as a module",
    ("jengine.api.llm", "jengine"): "llm.compare calls jengine.compare, a room above",
}
# Files of device rooms that must stay free of jax, because host code uses them.
NO_JAX = {
    "jengine.sampling",
    "jengine.sampling.features",
    "jengine.sampling.row_parameters",
    "jengine.sampling.inputs",
    "jengine.sampling.raised",
    "jengine.runner.report_types",
    "jengine.runner.variants.buckets",
    "jengine.runner.variants.features",
    "jengine.runner.variants.program_list",
    "jengine.runner.variants.tap_sets",
    "jengine.runner.plans.rows",
}
# Our own code that may be imported inside functions.
LAZY_IMPORTERS = {"jengine": "public names, loaded when they are first used"}
LAZY_TARGETS = {
    "jengine.weights.orbax_io": "orbax takes a second to import, and few need it",
    "jengine.grammar.guidance": "llguidance, for engines whose requests have grammars",
    "jengine.grammar.tokens": "the same",
    "jengine.weights.gguf.header": "numpy, for settings that `--help` reads without it",
}

# Schemas of the API, and what has the same name in the engine.
SHARED_CLASS_NAMES = {"AbortRequest", "Counts", "Histogram", "Message", "Usage"}


class Import(NamedTuple):
    """One import statement: where it stands, what it names, and whether inside a function."""

    module: str
    target: str
    lazy: bool


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    package, *rest = module.split(".")
    if package != "jengine":
        return package
    is_room = rest and rest[0] not in NOUN_FOLDERS and (ROOT / "jengine" / rest[0]).is_dir()
    return rest[0] if is_room else "nouns"


def files() -> list[Path]:
    return [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]


@cache
def all_imports() -> tuple[Import, ...]:
    return tuple(one for file in files() for one in imports_of(module_name(file), file.read_text()))


def imports_of(module: str, source: str) -> Iterator[Import]:
    tree = ast.parse(source)
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    functions = [node for node in ast.walk(tree) if isinstance(node, kinds)]
    inside = {id(node) for function in functions for node in ast.walk(function)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            names = [submodule(node.module or "", alias.name) for alias in node.names]
        else:
            continue
        yield from (Import(module, name, id(node) in inside) for name in names)


def submodule(package: str, name: str) -> str:
    """What `from package import name` imports: a module of ours, or the package itself."""
    path = ROOT.joinpath(*package.split("."), name)
    return f"{package}.{name}" if path.is_dir() or path.with_suffix(".py").is_file() else package


def own_imports() -> list[Import]:
    """Imports of our own code, without the named exceptions."""
    return [
        one
        for one in all_imports()
        if one.target.split(".")[0] in PACKAGES
        and (one.module, "*") not in EXCEPTIONS
        and (one.module, one.target) not in EXCEPTIONS
    ]


def test_the_files_are_found() -> None:
    assert len(files()) > 60
    assert len(own_imports()) > 150


def test_every_room_has_its_rule() -> None:
    rooms = {room_of(module_name(file)) for file in files()}
    assert rooms <= set(ALLOWED), "give the new room a line in ALLOWED"


def test_rooms_import_only_what_is_below_them() -> None:
    broken = [
        f"{one.module} imports {one.target}"
        for one in own_imports()
        if room_of(one.target) not in {room_of(one.module), *ALLOWED[room_of(one.module)]}
    ]
    assert broken == []


def runner_room(name: str, *, is_folder: bool) -> str:
    return name if is_folder or name == "report_types" else "top"


def server_room(name: str, *, is_folder: bool) -> str:
    return name if is_folder else "nouns" if name in SERVER_NOUNS else "top"


@pytest.mark.parametrize(
    ("house", "rules", "room_in"),
    [("runner", RUNNER, runner_room), ("server", SERVER, server_room)],
    ids=["runner", "server"],
)
def test_rooms_within_a_room_import_only_what_is_below_them(
    house: str, rules: dict[str, set[str]], room_in: Callable[..., str]
) -> None:
    def room(module: str) -> str:
        name = module.split(".")[2]
        return room_in(name, is_folder=(ROOT / "jengine" / house / name).is_dir())

    inside = [
        (one, room(one.module), room(one.target))
        for one in own_imports()
        if all(name.startswith(f"jengine.{house}.") for name in (one.module, one.target))
    ]
    assert {room for _, *rooms in inside for room in rooms} == set(rules)
    broken = [
        f"{one.module} imports {one.target}"
        for one, importing, imported in inside
        if imported not in {importing, *rules[importing]}
    ]
    assert broken == []


@pytest.mark.parametrize("rules", [ALLOWED, RUNNER, SERVER], ids=["rooms", "runner", "server"])
def test_the_rules_have_no_cycle(rules: dict[str, set[str]]) -> None:
    left = {room: set(below) for room, below in rules.items()}
    while left:
        ready = {room for room, below in left.items() if not below & set(left)}
        assert ready, f"these rooms may import each other: {sorted(left)}"
        left = {room: below for room, below in left.items() if room not in ready}


def test_the_halves_do_not_know_each_other() -> None:
    for half, other in ((HOST_HALF, DEVICE_HALF), (DEVICE_HALF, HOST_HALF)):
        for below in half.values():
            assert not (below & set(other)) - {"nouns"}
    seen = [
        f"{one.module} imports {one.target}"
        for one in own_imports()
        if room_of(one.module) in DEVICE_HALF
        and room_of(one.target) == "nouns"
        and one.target not in DEVICE_NOUNS
    ]
    assert seen == [], "the device half never sees requests, plans or outputs"


def test_the_host_half_does_not_import_jax() -> None:
    found = [
        f"{one.module} imports {one.target}"
        for one in all_imports()
        if (room_of(one.module) in HOST_HALF or one.module in NO_JAX)
        and one.target.split(".")[0] in DEVICE_LIBRARIES
    ]
    assert found == []


def test_only_the_runner_knows_both_jax_and_plans() -> None:
    with_jax = {one.module for one in all_imports() if one.target.split(".")[0] == "jax"}
    with_plan = {one.module for one in all_imports() if one.target == "jengine.plan"}
    both = with_jax & with_plan
    assert {room_of(module) for module in both} == {"runner"}, sorted(both)


def test_nothing_that_runs_foreign_code_is_imported() -> None:
    found = [
        f"{one.module} imports {one.target}"
        for one in all_imports()
        if one.target.split(".")[0] in RUNS_CODE and one.module not in OTHER_PROCESSES
    ]
    assert found == []


def test_programs_of_their_own_are_not_imported_and_import_nothing_of_ours() -> None:
    found = [
        f"{one.module} imports {one.target}"
        for one in all_imports()
        if one.target in OTHER_PROCESSES
        or (one.module in OTHER_PROCESSES and one.target.split(".")[0] in PACKAGES)
    ]
    assert found == []


def test_our_own_code_is_imported_at_the_top() -> None:
    found = [
        f"{one.module} imports {one.target}"
        for one in all_imports()
        if one.lazy
        and one.target.split(".")[0] in PACKAGES
        and one.module not in LAZY_IMPORTERS
        and one.target not in LAZY_TARGETS
    ]
    assert found == []


def test_exceptions_are_still_needed() -> None:
    pairs = {(one.module, one.target) for one in all_imports()}
    unused = [key for key in EXCEPTIONS if key[1] != "*" and key not in pairs]
    assert unused == []


HOST = (
    "jengine", "jengine.config", "jengine.scheduler.scheduler", "jengine.kvcache.coordinator",
    "jengine.text.transcript", "jengine.assembly.settings.args", "jengine.sampling.inputs",
    "jengine.runner.variants.program_list", "jengine.runner.plans.rows", "tests.executor.scripted",
    "jengine.distributed.data_parallel", "jengine.demo", "jengine.client.server",
    "jengine.hub.snapshot", "jengine.weights.resolve", "jengine.bench.serve.measure",
)  # fmt: skip


def test_what_the_host_uses_does_not_load_jax() -> None:
    code = (
        "import importlib, sys\n"
        f"for name in {HOST}:\n"
        "    importlib.import_module(name)\n"
        "    for unwanted in {'jax', 'flax', 'torch'} & sys.modules.keys():\n"
        "        sys.exit(f'{name} loads {unwanted}')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_engine_of_tokens_loads_only_what_it_needs() -> None:
    code = (
        f"import sys; from jengine import LLM; LLM('demo', **{SMALL_DEMO}, "
        "skip_tokenizer_init=True, load_format='safetensors'); "
        "unwanted = ('transformers', 'torch', 'orbax', 'ray', 'jaxtyping', 'llguidance'); "
        "print([m for m in unwanted if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_nothing_is_defined_after_a_program_runs() -> None:
    """A module run as a program has no name that stands behind its last lines."""
    for file in sorted((Path(__file__).parents[1] / "jengine").rglob("*.py")):
        _, _, after = file.read_text(encoding="utf-8").partition('\nif __name__ == "__main__"')
        assert not any(line.startswith(("def ", "class ")) for line in after.splitlines()), file


def test_class_names_stand_once() -> None:
    """A name that two classes share makes a reader ask which one is meant: only these still do."""
    named = Counter(
        name
        for file in files()
        for name in re.findall(r"^ *class (\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)
    )
    shared = {name for name, count in named.items() if count > 1}
    assert not shared - SHARED_CLASS_NAMES, "say in the name what kind of it this class is"
