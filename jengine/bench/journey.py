"""Counts the lines of code that a short `generate` call executes, per package.

In: a number of tokens. Out: lines on the host and in the traced step, by room. A function of this
project counts once, with its whole text. The engine is built and its programs are compiled before
counting begins; then the parts of its steps are traced again by themselves.
"""

from __future__ import annotations

import ast
import math
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple
from unittest.mock import patch

import jax

import jengine
from jengine.bench.frame import Benchmark

ROOT = Path(jengine.__file__).parent.parent
THIS_FILE = Path(__file__)
PACKAGES = ("jengine", "pallas_kernels", "sharding")
NEW_TOKENS = 4
Function = tuple[str, int]  # file below the root, first line


class Run(NamedTuple):
    """Functions of this project that were called, in any thread, and pairs of a function and one
    of another file that it called."""

    functions: set[Function]
    switches: set[tuple[Function, Function]]


@contextmanager
def followed() -> Iterator[Run]:
    """A Run of what is called inside the block, complete at its end."""
    calls: set[tuple[CodeType | None, CodeType]] = set()
    found = Run(set(), set())

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call" and function_of(frame.f_code):
            caller = frame.f_back
            while caller is not None and not function_of(caller.f_code):
                caller = caller.f_back
            calls.add((caller and caller.f_code, frame.f_code))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # pyrefly: ignore[bad-argument-type] - typed as never None
        for caller, called in calls:
            begin, end = caller and function_of(caller), function_of(called)
            assert end is not None, "noted above"
            found.functions.add(end)
            if begin is not None and begin[0] != end[0]:
                found.switches.add((begin, end))


@cache
def function_of(code: CodeType) -> Function | None:
    """A function of this project; None for any other code."""
    file = Path(code.co_filename)
    if file == THIS_FILE or not file.is_relative_to(ROOT):
        return None
    relative = file.relative_to(ROOT)
    return (str(relative), code.co_firstlineno) if relative.parts[0] in PACKAGES else None


def lines_of(functions: set[Function]) -> dict[str, int]:
    """Lines of these functions per package, signatures and docstrings included."""
    lines: Counter[str] = Counter()
    for file in sorted({file for file, _ in functions}):
        first_lines = {line for other, line in functions if other == file}
        room = room_of(Path(file))
        lines[room] += len(lines_in(ast.parse((ROOT / file).read_text()), first_lines))
    return dict(lines.most_common())


def lines_in(tree: ast.Module, first_lines: set[int]) -> set[int]:
    """Lines of the functions that begin at one of these lines."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            decorators = getattr(node, "decorator_list", [])
            # A code object begins with its first decorator.
            begins = min([node.lineno, *(one.lineno for one in decorators)])
            if begins in first_lines:
                found.update(range(begins, (node.end_lineno or node.lineno) + 1))
    return found


def room_of(file: Path) -> str:
    """Package of a file; "nouns" for top-level modules of jengine."""
    package, *rest = file.parts
    if package != "jengine":
        return package
    return rest[0] if len(rest) > 1 else "nouns"


def measure(new_tokens: int = NEW_TOKENS) -> dict[str, Any]:
    """Line counts of generating this many tokens, and of tracing the step's parts."""
    params = jengine.SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
    settings: dict[str, Any] = {"max_num_seqs": 2, "max_model_len": 128, "enforce_eager": True}
    with jengine.LLM("demo", **settings) as llm:
        ask = partial(llm.generate, "Once upon a time", params, use_tqdm=False)
        ask()
        # The core's counts are read by a clock: in no step, or in a slow machine's every step.
        with patch("jengine.engine.in_process.COUNT_EVERY", math.inf), followed() as host:
            ask()
        programs = llm.engine.loaded.programs
        jax.clear_caches()  # a function that is jitted by itself is traced again only then
        with followed() as traced:
            for bucket, features in tuple(programs.ledger.entries):  # the parts of its steps
                programs.compiler.lower(bucket, features)
    step = traced.functions - host.functions
    on_host, in_step = lines_of(host.functions), lines_of(step)
    return {
        "new_tokens": new_tokens,
        "host_lines": sum(on_host.values()),
        "host_functions": len(host.functions),
        "host_switches": len(host.switches),
        "host_by_room": on_host,
        "step_lines": sum(in_step.values()),
        "step_functions": len(step),
        "step_by_room": in_step,
    }


main = Benchmark(
    "journey", __doc__, {"--new-tokens": NEW_TOKENS}, lambda args: measure(args.new_tokens)
).main


if __name__ == "__main__":
    raise SystemExit(main())
