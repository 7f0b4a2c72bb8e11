"""Compiles all cases, in separate processes, and writes the results.

    python -m jengine.bench.gpu_proof [--parts kernels steps] [--only llama] [--out DIR] [--check]
                                        [--keep]

`--check` compares with the results in the repository and fails where something got worse. `--keep`
takes what is not compiled again from there.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from jengine.bench.gpu_proof.cases import CAPABILITIES, StepCase, step_cases
from jengine.bench.gpu_proof.device import environment
from jengine.bench.gpu_proof.report import markdown, worse
from jengine.bench.machine import commit, machine

RESULTS = Path(__file__).parent.parent / "results" / "gpu-proof.json"
PACKAGES = ("jax", "jaxlib", "triton", "jax-triton", "jax-cuda12-plugin", "jax-cuda13-plugin")


def run_worker(module: str, *arguments: str) -> Any:
    """Run a worker and return its last line. A failing worker aborts the run."""
    with tempfile.TemporaryDirectory() as folder:
        dump = Path(folder)
        if module == "steps":
            arguments = (*arguments, folder)
        command = [sys.executable, "-m", f"jengine.bench.gpu_proof.{module}", *arguments]
        done = subprocess.run(  # noqa: S603
            command, env=environment(dump), stdout=subprocess.PIPE, text=True, check=False
        )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed; see above.")
    return json.loads(done.stdout.splitlines()[-1])


def kernel_rows(only: Sequence[str], capability: int) -> list[dict[str, Any]]:
    """Results of kernels for one device."""
    print(f"kernels for compute capability {capability}", file=sys.stderr)
    return run_worker("kernels", str(capability), "--only", *only)


def step_row(numbered: tuple[int, StepCase]) -> dict[str, Any]:
    """Result of one step."""
    number, case = numbered
    print(f"step of {case}", file=sys.stderr)
    return run_worker("steps", str(number))


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def with_kept(result: dict[str, Any], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """Fill missing rows from an earlier result, for cases that still exist."""
    if result["versions"] != earlier["versions"]:
        raise SystemExit(
            f"--keep: the results in the repository are of {earlier['versions']}, and these of "
            f"{result['versions']}. Compile everything again, without --keep."
        )
    rows = {row["step"]: row for row in (*earlier["steps"], *result["steps"])}
    again = {(row["case"], row["capability"]) for row in result["kernels"]}
    kept = [row for row in earlier["kernels"] if (row["case"], row["capability"]) not in again]
    return {
        **result,
        "kept_from": earlier["commit"],
        "kernels": [*kept, *result["kernels"]],
        "steps": [rows[str(case)] for case in step_cases() if str(case) in rows],
    }


def command_of(parts: list[str], only: Sequence[str], *, keep: bool) -> str:
    """The command line without machine-specific folders."""
    words = ["python", "-m", "jengine.bench.gpu_proof"]
    words += [] if parts == ["kernels", "steps"] else ["--parts", *parts]
    words += ["--only", *only] if any(only) else []
    return shlex.join([*words, *["--keep"] * keep])


def main() -> None:
    """Compile, write, and compare if requested."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=("kernels", "steps"),
                        default=["kernels", "steps"])  # fmt: skip
    parser.add_argument(
        "--only", nargs="+", default=[""], help="cases whose name holds one of these"
    )
    parser.add_argument("--out", type=Path, help="folder for gpu-proof.json and gpu-proof.md")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--keep", action="store_true", help="rows that are not compiled again")
    args = parser.parse_args()
    began = time.monotonic()
    steps = [item for item in enumerate(step_cases()) if any(x in str(item[1]) for x in args.only)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # the work is done in other processes
        kernels = pool.map(
            partial(kernel_rows, args.only), CAPABILITIES if "kernels" in args.parts else ()
        )
        compiled = pool.map(step_row, steps if "steps" in args.parts else ())
    result = {
        "bench": "gpu_proof",
        "note": "compiled on a machine without a GPU; nothing here was run or timed",
        "command": command_of(args.parts, args.only, keep=args.keep),
        "commit": commit(),
        "hardware": machine(),
        "versions": versions(),
        "kernels": [row for rows in kernels for row in rows],
        "steps": list(compiled),
    }
    earlier = json.loads(RESULTS.read_text("utf-8"))
    if args.keep:
        result = with_kept(result, earlier)
    print(markdown(result))
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / RESULTS.name).write_text(json.dumps(result, indent=1) + "\n", "utf-8")
        (args.out / RESULTS.with_suffix(".md").name).write_text(markdown(result), "utf-8")
    told = {name: len(it) if isinstance(it, list) else it for name, it in result.items()}
    print(json.dumps(told))  # the parts are only counted here: --out has all of them
    if args.check:
        problems = worse(result, earlier)
        if problems:
            raise SystemExit("worse than before:\n  " + "\n  ".join(problems))
        print("nothing got worse", file=sys.stderr)


if __name__ == "__main__":
    main()
