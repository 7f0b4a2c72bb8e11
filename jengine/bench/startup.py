"""Time from process start to the first token, with cold and warm compile caches.

Each measurement is a separate process. Cold: empty caches, of compiled programs and
of compiled kernels. Warm: the caches of the run before. Either way Python's bytecode is there,
which pip writes when it installs a package.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from jengine.bench.surroundings import surroundings
from jengine.errors import JengineError

# Begins at the first line of the process, ends with the first token. The interpreter's own start
# is added by the parent, which knows when it began.
CHILD = """
import json, sys, time
settings = json.loads(sys.argv[1])
from jengine import LLM, SamplingParams
imported = time.time()
llm = LLM(settings.pop("model"), **settings)
ready = time.time()
params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
llm.generate([{"prompt_token_ids": [3, 4, 5]}], params, use_tqdm=False)
print(json.dumps({"imported": imported, "ready": ready, "token": time.time(),
                  "programs": len(llm.ledger.entries)}))
"""


class StartFailed(JengineError, RuntimeError):
    """A measured process failed before its first token."""


def measure(model: str, settings: dict[str, Any], *, cold: int, warm: int) -> dict[str, Any]:
    """Medians over processes, with cold and with warm caches."""
    runs: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
    with tempfile.TemporaryDirectory() as keeps:
        start(model, settings, keeps, keeps)  # fills the caches, and the system's of files
        for _ in range(cold):
            with tempfile.TemporaryDirectory() as empty:
                runs["cold"].append(start(model, settings, empty, keeps))
        for _ in range(warm):
            runs["warm"].append(start(model, settings, keeps, keeps))
    return {
        "bench": "startup",
        **surroundings(),
        "settings": settings,
        **{kind: summary(found) for kind, found in runs.items() if found},
    }


def start(model: str, settings: dict[str, Any], cache: str, bytecode: str) -> dict[str, float]:
    """Run one process; returns seconds until imports, ready engine and first token. `bytecode`:
    where Python keeps its own."""
    compilation = {**(settings.get("compilation_config") or {}), "cache_dir": cache}
    words = json.dumps({"model": model, **settings, "compilation_config": compilation})
    began = time.time()
    done = subprocess.run(  # noqa: S603 - this Python, and a program of ours
        [sys.executable, "-c", CHILD, words],
        capture_output=True, text=True, check=False,
        env=environment(cache, bytecode),
    )  # fmt: skip
    if done.returncode:
        last = " / ".join(done.stderr.strip().splitlines()[-3:])
        raise StartFailed(f"{model} did not start (status {done.returncode}): {last}")
    times = json.loads(done.stdout.splitlines()[-1])
    return {
        "imports_s": times["imported"] - began,
        "ready_s": times["ready"] - began,
        "first_token_s": times["token"] - began,
        "programs": times["programs"],
    }


def environment(cache: str, bytecode: str) -> dict[str, str]:
    """This process's, with these folders for compiled kernels and for Python's bytecode."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**own, "XDG_CACHE_HOME": cache, "PYTHONPYCACHEPREFIX": str(Path(bytecode, "bytecode"))}


def summary(runs: list[dict[str, float]]) -> dict[str, Any]:
    """Median of each figure, and every run's time to first token."""
    medians = {name: round(statistics.median(run[name] for run in runs), 2) for name in runs[0]}
    return {**medians, "all_first_token_s": [round(run["first_token_s"], 2) for run in runs]}


def printed(result: dict[str, Any]) -> str:
    """One line each for cold and warm starts."""
    lines = [
        f"{'caches':<8} {'imports s':>10} {'ready s':>10} {'first token s':>14} {'programs':>9}"
    ]
    for kind in ("cold", "warm"):
        if kind in result:
            one = result[kind]
            lines.append(
                f"{kind:<8} {one['imports_s']:>10.2f} {one['ready_s']:>10.2f} "
                f"{one['first_token_s']:>14.2f} {one['programs']:>9.0f}"
            )
    return "\n".join(lines)
