"""Stage: `jengine compare` on the device: bfloat16 errors of the engine next to torch's.

The demo model, whose weights are real, so that tokens mean something.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from jengine.bench.gpu.part import StageResult, run_stage

DTYPES = ("bfloat16", "float32")


def measure(part: StageResult, args: argparse.Namespace) -> None:
    """One line per dtype, with the verdict in `right`."""
    for dtype in part.in_time(DTYPES[:1] if args.dry_run else DTYPES):
        with part.attempt("compare", dtype):
            found = compared(part.path.with_name(f"compare-{dtype}.json"), dtype, args)
            part.add(what="compare", case=f"demo in {dtype}", verdict=found["verdict"],
                     right=found["passed"])  # fmt: skip


def compared(file: Path, dtype: str, args: argparse.Namespace) -> dict[str, object]:
    """The command's JSON output. An exit status above 1 means the comparison did not run."""
    words = [
        sys.executable, "-m", "jengine", "compare", "demo", "--dtype", dtype, "--json", str(file),
        "--torch-python", args.peer_python, *["--no-sweeps"] * args.dry_run,
        *(["--new-tokens", "4"] if args.dry_run else []),
    ]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode > 1:
        raise RuntimeError(f"{' '.join(words)}: status {done.returncode}: {done.stderr[-500:]}")
    return json.loads(file.read_text("utf-8"))


if __name__ == "__main__":
    run_stage(measure)
