"""Generates the tables of benchmark figures in the documentation from saved results.

python -m jengine.bench.table [--check]: writes them between two marks, or says whether they differ.
The documentation shows what was measured in turns with a peer, the project's README some of that,
with a picture of it, the README here all the rest.
In: the JSON that `jengine bench` writes. Must not measure.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jengine.bench.gpu.kept import markdown
from jengine.bench.machine import hardware_of
from jengine.bench.table import speeds, trials
from jengine.bench.table.marked import is_check, settle, with_marked
from jengine.bench.table.ratio_chart import Compared, ratio_chart
from jengine.bench.table.speeds import in_short, speed
from jengine.pictures.page import Table, as_markdown

RESULTS = Path(__file__).parents[1] / "results"
ROOT = Path(__file__).parents[3]
COMMAND = "python -m jengine.bench.table"
# Results that the README shows, in this order; the columns that say what was measured, not how.
HEADLINES = (
    "mixed-vllm-cpu.json",
    "decode-vllm-cpu.json",
    "prefill-vllm-cpu.json",
    "shared-vllm-cpu.json",
    "decode-1b-vllm-cpu.json",
    "mixed-qwen3-moe-150m-vllm-cpu.json",
    "serve-vllm-cpu.json",
    "mixed-transformers-cpu.json",
)
BEGIN, END = "<!-- measured -->\n", "<!-- end of measured -->\n"
# Not measurements of speed: they have tables of their own.
NOT_TIMED = ("gpu-proof.json", "gpu-proof-fa4.json", "gpu-h200.json", "coverage.json")
HEAD = ("work", "jengine", "peer", "ratio", "hardware", "command, commit")
# A benchmark's name -> the rows of its result.
KINDS = {**speeds.KINDS, **trials.KINDS}


def headlines() -> str:
    """The README's rows: workloads without the commands that repeat them."""
    results = [json.loads((RESULTS / name).read_text(encoding="utf-8")) for name in HEADLINES]
    return rows_of(results, with_command=False)


def with_peer() -> str:
    """All results measured against a peer."""
    return rows_of([result for result in kept() if "peer" in result])


def without_peer() -> str:
    """All results measured without a peer."""
    return rows_of([result for result in kept() if "peer" not in result])


def headline_chart() -> str:
    """The README's rows as a chart."""
    results = [json.loads((RESULTS / name).read_text(encoding="utf-8")) for name in HEADLINES]
    compared = [
        Compared(
            f"{one.get('workload', 'served')}, {in_short(parameters_of(one))} parameters",
            f"{speed(one['output_tok_s'])}; {one['peer']['engine'].split(',')[0]}: "
            f"{speed(one['peer']['output_tok_s'])}",
            one["ratio"],
        )
        for one in results
    ]  # fmt: skip
    where = " or ".join(dict.fromkeys(map(hardware_of, results)))
    return ratio_chart(f"Output tokens a second, as a ratio to the peer on {where}", compared)


def parameters_of(result: dict[str, Any]) -> int:
    """The model's parameter count; for a served model, by its shape."""
    return result["parameters"] if "parameters" in result else SERVED[result["model_id"]]


# Parameters of models that served, of which results have the name alone.
SERVED = {"llama-135m": 134_515_008}
# The picture of the README.
CHART = ROOT / "jengine" / "docs" / "pages" / "measured.svg"


def on_gpu() -> str:
    """The GPU check's kept run."""
    return markdown(json.loads((RESULTS / "gpu-h200.json").read_text(encoding="utf-8")))


# A file -> the table between its marks.
TABLES = {
    ROOT / "README.md": headlines,
    ROOT / "jengine" / "docs" / "pages" / "performance.md": with_peer,
    ROOT / "jengine" / "docs" / "pages" / "gpu.md": on_gpu,
    ROOT / "jengine" / "bench" / "README.md": without_peer,
}


def kept() -> list[dict[str, Any]]:
    """All saved results by kind and file name."""
    files = [file for file in sorted(RESULTS.glob("*.json")) if file.name not in NOT_TIMED]
    results = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    return sorted(results, key=lambda result: result["bench"])


def rows_of(results: Sequence[dict[str, Any]], *, with_command: bool = True) -> str:
    """Results as a Markdown table."""
    head = HEAD if with_command else HEAD[:-1]
    rows = []
    for result in results:
        how = (hardware_of(result), f"`{result['command']}`, {result['commit']}")
        where = how if with_command else how[:-1]
        rows += [(*row, *where) for row in KINDS[result["bench"]](result)]
    return as_markdown(Table(head, rows))


def main(words: Sequence[str] | None = None) -> int:
    """Write the tables, or with `--check` compare them; returns the exit status."""
    check = is_check(COMMAND, words)
    wanted = {file: with_marked(file, BEGIN, END, table() + "\n") for file, table in TABLES.items()}
    return settle({**wanted, CHART: headline_chart()}, COMMAND, check=check)


if __name__ == "__main__":
    sys.exit(main())
