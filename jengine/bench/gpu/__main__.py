"""Runs the GPU check's stages within a deadline; prints a table, and one JSON object at the end.

python -m jengine.bench.gpu --out DIR
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jengine.bench.gpu.page import page
from jengine.bench.gpu.part import write_json
from jengine.bench.gpu.report import printed, shares, succeeded
from jengine.bench.gpu.stages import (
    BEFORE_TABLE,
    STAGES,
    TABLE,
    Settings,
    Stage,
    checkout,
    command,
    environment,
    obstacle,
    part_file,
)

# Seconds that a stage may exceed its time by, to finish a measurement.
GRACE = 20
# A stage may take so many times its usual time where others need none.
MOST_OF_ITS_TIME = 1.5
OF_A_DRY_RUN = 8  # which interprets kernels
# With less time left, a stage is not started.
LEAST = 10
EPILOG = """\
What is missing is said and left out: without triton the kernels' stages measure plain XLA, and the
sweep is skipped; without torch or transformers (or --torch-python PYTHON, which has them) so is
their stage; without msgspec, flax, psutil, tqdm, jinja2, tokenizers or transformers so are the
models.
On a machine without network, carry the wheel: on another one
    pip download msgspec --no-deps --dest wheels --python-version 3.12 --platform \
manylinux2014_x86_64 --only-binary :all:
and there
    pip install --no-index --find-links wheels msgspec
The package itself need not be installed: run from the checkout.

A run that was stopped keeps what it has. Give the same --out and the stages still wanted in
--stages; the table is of all of them.
"""


def main(words: Sequence[str] | None = None) -> int:
    """Exit status: 0 if every check passed and no stage failed."""
    args = arguments(words)
    args.out.mkdir(parents=True, exist_ok=True)
    if problem := other_kind(args.out / "gpu.json", dry_run=args.dry_run):
        print(problem, file=sys.stderr)
        return 2
    pythons = args.torch_python, args.vllm_python, args.mlx_python
    after = args.after and args.after.absolute()
    settings = Settings(args.out.absolute(), args.dry_run, *pythons, after)
    end = time.monotonic() + args.deadline
    wanted = (*BEFORE_TABLE, *(one.name for one in TABLE)) if args.table else args.stages
    chosen = [stage for stage in (*STAGES, *TABLE) if stage.name in wanted]
    asked = sys.argv[1:] if words is None else words
    run = {
        "dry_run": args.dry_run,
        "command": shlex.join(["python", "-m", "jengine.bench.gpu", *asked]),
    }
    for number, stage in enumerate(chosen):
        left = end - time.monotonic()
        print(f"{stage.name} ...", file=sys.stderr, flush=True)
        part = run_one(stage, settings, left, share(chosen[number:], settings, left))
        print(f"{stage.name}: {part['status']}", file=sys.stderr, flush=True)
        write_report(run, settings)
        if problem := wrong_device(part, settings):
            print(problem, file=sys.stderr)
            return 2
    if args.install_tables:
        install_tables(settings)
    whole = write_report(run, settings)
    print(printed(whole))
    print(json.dumps(whole))
    return 0 if succeeded(whole["parts"]) else 1


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    names = [stage.name for stage in STAGES]
    parser = argparse.ArgumentParser(
        prog="python -m jengine.bench.gpu", description="The GPU check.", epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--out", type=Path, required=True, help="a folder for what is found")
    parser.add_argument("--deadline", type=float, default=590, help="seconds for all [590]")
    parser.add_argument("--stages", nargs="+", choices=names, default=names, metavar="STAGE",
                        help=f"which to run: {', '.join(names)} [all]")  # fmt: skip
    parser.add_argument("--torch-python", default=sys.executable, metavar="PYTHON",
                        help="a Python that has torch and transformers [this one]")  # fmt: skip
    parser.add_argument(
        "--vllm-python",
        metavar="PYTHON",
        help="a Python that has vLLM, to race it; give --deadline 1200",
    )
    parser.add_argument(
        "--mlx-python", metavar="PYTHON", help="a Python that has MLX's CUDA build, for --table"
    )
    parser.add_argument(
        "--table",
        action="store_true",
        help="compare engines instead: jengine with each kind of kernels, and, where their Python "
        "is named, vLLM and MLX, one after the other on the same requests",
    )
    parser.add_argument(
        "--after", type=Path, metavar="FILE", help="an earlier gpu.json: its cases come last"
    )
    parser.add_argument("--install-tables", action="store_true",
                        help="copy the swept tuning tables into this checkout")  # fmt: skip
    parser.add_argument("--dry-run", action="store_true",
                        help="tiny sizes on the CPU, to see that everything runs")  # fmt: skip
    args = parser.parse_args(words)
    if args.install_tables and args.dry_run:
        parser.error("--install-tables with --dry-run: a dry run measures nothing to install.")
    return args


def other_kind(earlier: Path, *, dry_run: bool) -> str | None:
    """Why the output folder cannot be reused (it holds results of another kind of run), or None."""
    if not earlier.is_file() or read(earlier)["dry_run"] == dry_run:
        return None
    kinds = ("a dry run", "a real one") if dry_run else ("a real run", "a dry one")
    return f"{earlier} is of {kinds[1]}, and this is {kinds[0]}: give another --out."


def share(stages: Sequence[Stage], settings: Settings, left: float) -> float:
    """Time limit of the next stage: its default, extended by time the remaining stages do not need,
    or scaled down if time is short."""
    first, *others = stages
    others = [stage for stage in others if obstacle(stage, settings) is None]
    needed = first.seconds + sum(stage.seconds for stage in others)
    most = OF_A_DRY_RUN if settings.dry_run else MOST_OF_ITS_TIME
    return min(first.seconds * most, left * first.seconds / needed)


def run_one(
    stage: Stage, settings: Settings, left: float, seconds: float | None = None
) -> dict[str, Any]:
    """Run a stage's process; returns its results and how it ended. `seconds`: time limit, None for
    the default."""
    file = part_file(stage, settings)
    if left < LEAST:
        return ended(file, "skipped", "no time left for this stage")
    if reason := obstacle(stage, settings):
        return ended(file, "skipped", reason)
    file.unlink(missing_ok=True)
    seconds = min(seconds or stage.seconds, left - LEAST / 2)
    log = file.with_suffix(".log")
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(  # noqa: S603 - our own stages
            command(stage, settings, seconds), env=environment(stage, settings, os.environ),
            stdout=output, stderr=subprocess.STDOUT, cwd=checkout(),
        )  # fmt: skip
        try:
            status = process.wait(min(seconds + GRACE, left))
        except subprocess.TimeoutExpired:
            return ended(file, "stopped", f"stopped after {seconds + GRACE:.0f} s; see {log.name}")
        finally:
            process.kill()
            process.wait()
    if status:
        last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-4:]
        return ended(file, "failed", f"ended with status {status}: {' / '.join(last)}")
    return read(file)


def ended(file: Path, status: str, reason: str) -> dict[str, Any]:
    """Add a stage's ending to its results. A skipped stage keeps an earlier run's results."""
    part = read(file) if file.is_file() else {"lines": [], "left_out": []}
    if status != "skipped" or not part["lines"]:
        part.update(status=status, reason=reason)
        write_json(file, part)
    return part


def read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8"))


def wrong_device(part: dict[str, Any], settings: Settings) -> str | None:
    """Why the run must stop on this device, or None."""
    for line in part["lines"]:
        if line["what"] == "device" and line["platform"] == "cpu" and not settings.dry_run:
            return (
                "There is no GPU that jax can use: it sees CPUs only. Install the CUDA build of "
                "jax (jengine[cuda12] or jengine[cuda13]), or use --dry-run to see that the check "
                "itself runs."
            )
    return None


def write_report(run: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """Write gpu.json, gpu.txt and gpu.html to the folder, from the stages' files."""
    files = {stage.name: part_file(stage, settings) for stage in (*STAGES, *TABLE)}
    parts = {name: read(file) for name, file in files.items() if file.is_file()}
    shares(parts)
    whole = {"bench": "gpu", **run, **surroundings_in(parts), "parts": parts}
    write_json(settings.out / "gpu.json", whole)
    (settings.out / "gpu.txt").write_text(printed(whole) + "\n", encoding="utf-8")
    (settings.out / "gpu.html").write_text(page(whole), encoding="utf-8")
    return whole


def surroundings_in(parts: dict[str, Any]) -> dict[str, Any]:
    """Commit, hardware and versions, as recorded by the first stage."""
    lines = parts.get("device", {}).get("lines", [])
    return {name: line[name] for line in lines for name in ("commit", "hardware", "versions")}


def install_tables(settings: Settings) -> None:
    """Copy the sweep's tuning tables into the checkout."""
    for table in sorted((settings.out / "tuning").glob("*.json")):
        target = checkout() / "pallas_kernels" / table.stem / "tuning.json"
        shutil.copyfile(table, target)
        print(f"{target} now holds what was timed here", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
