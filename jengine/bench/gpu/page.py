"""HTML report of all stages, self-contained: rooflines, step times, all lines.

In: the content of gpu.json. Out: HTML without scripts or external resources.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from jengine.bench.gpu.report import ceiling, head, memory_rate, printed
from jengine.pictures.chart_parts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    figure,
    grid,
    grid_below,
    legend,
    log_axis,
    text,
    tip,
)
from jengine.pictures.page import Part, Section, Table, Verbatim, report

Parts = Mapping[str, Mapping[str, Any]]
STAGES_OF_STEPS = ("small-model", "large-model", "xla-matmuls", "tensor-parallel")


def page(whole: Mapping[str, Any]) -> str:
    """The whole page."""
    parts: Parts = whole["parts"]
    about = [*head(parts.get("device", {})), f"command: {whole['command']}"]
    if whole["dry_run"]:
        about.insert(0, "DRY RUN on a CPU with tiny sizes: no figure here means anything.")
    return report(
        "jengine on this GPU", about,
        *([Section("Engines", "Tokens a second, and in brackets the time as a multiple of the "
                   "least that reading and computing take at this device's measured rates.",
                   engines(parts))]
          if any(lines_of(parts, tuple(parts), "table")) else []),
        Section("Roofline", "Attention and matmuls: a dot on the line is as fast as this device "
                "was seen to read or to multiply.", roofline(parts)),
        Section("Decode steps", "Milliseconds a step, and what reading weights and cache alone "
                "takes at the rate that was measured.", steps(parts)),
        Section("Everything", Verbatim(printed(whole))),
    )  # fmt: skip


def engines(parts: Parts) -> Table:
    """A row per set of requests, a column per engine."""
    lines = list(lines_of(parts, tuple(parts), "table"))
    versions = list(dict.fromkeys(line["version"] for line in lines))
    found = {(line["case"], line["version"]): line for line in lines}

    def cell(line: Mapping[str, Any] | None) -> str:
        if line is None:
            return ""
        times = f" ({line['of_roofline']:.2f})" if "of_roofline" in line else ""
        return f"{line['tok_s']:,.0f}{times}"

    rows = (
        [case, *(cell(found.get((case, version))) for version in versions)]
        for case in dict.fromkeys(line["case"] for line in lines)
    )
    return Table(["requests", *versions], rows)


def lines_of(parts: Parts, stages: tuple[str, ...], what: str) -> Iterator[dict[str, Any]]:
    """Result lines of one kind from some stages."""
    for stage in stages:
        for line in parts.get(stage, {}).get("lines", []):
            if line["what"] == what and "failed" not in line:
                yield {**line, "stage": stage}


def dots(parts: Parts) -> list[tuple[str, str, float, float]]:
    """Per kernel with both figures: name, style, arithmetic intensity and TFLOP/s."""
    found = []
    for what, look in (("decode attention", "ours"), ("prefill attention", "second")):
        for line in lines_of(parts, ("kernels",), what):
            seconds = line["best_us"] * 1e-6
            rate = line["operations"] / seconds / 1e12
            name = f"{what}, {line['case']}: {rate:,.1f} TFLOP/s"
            found.append((name, look, line["operations"] / line["moved"], rate))
    return found


def roofline(parts: Parts) -> Part:
    """Roofline plot on logarithmic axes; a note if there is nothing to plot."""
    memory, product = memory_rate(parts), ceiling(parts, "product bfloat16", "tflop_s")
    found = dots(parts)
    if not memory or not product or not found:
        return "The stages ceilings and kernels have no figures."
    ridge = product * 1e3 / memory  # operations a byte
    across = [x for _, _, x, _ in found] + [ridge * 4, ridge / 4]
    x = log_axis(across, LEFT, WIDTH - RIGHT)
    y = log_axis(
        [*(rate for *_, rate in found), product, memory * x.low * 1e-3], HEIGHT - BOTTOM, TOP
    )
    roof = [(one, min(memory * one * 1e-3, product)) for one in (x.low, ridge, x.high)]
    points = " ".join(f"{x.place(a):.1f},{y.place(b):.1f}" for a, b in roof)
    drawn = [grid(y), grid_below(x, TOP, HEIGHT - BOTTOM),
             f'<polyline class="line apart" points="{points}"/>',
             text(WIDTH / 2, HEIGHT - 4, "operations a byte", "middle"),
             text(LEFT, TOP - 2, "TFLOP/s", "end")]  # fmt: skip
    for name, look, intensity, rate in found:
        drawn.append(
            f'<g><circle class="dot {look}" cx="{x.place(intensity):.1f}" '
            f'cy="{y.place(rate):.1f}" r="4"/>{tip(name)}</g>'
        )
    names = [("decode attention", "ours"), ("prefill attention", "second"),
             (f"{memory:,.0f} GB/s and {product:,.0f} TFLOP/s", "apart")]  # fmt: skip
    return figure(drawn, "Roofline", HEIGHT, below=legend(names))


def steps(parts: Parts) -> Part:
    """Table of decode steps with their bandwidth bound."""
    memory = memory_rate(parts)
    rows = []
    for line in lines_of(parts, STAGES_OF_STEPS, "decode"):
        floor = line["read_bytes"] / memory * 1e-6 if memory else math.nan
        rows.append((
            line["model"], line["stage"], f"{line['rows']} x {line['context']:,}",
            f"{line['queued_ms']:.3f}", f"{floor:.3f}", f"{floor / line['queued_ms']:.0%}",
        ))  # fmt: skip
    head = ("model", "stage", "rows x context", "ms", "floor, ms", "share")
    return Table(head, rows) if rows else "No step was timed."
