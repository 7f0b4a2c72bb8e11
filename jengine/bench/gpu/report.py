"""Results of all stages as one JSON object and one text table. No jax here.

In: the files of the stages. Out: text. Must not know how anything was measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jengine.pictures.page import aligned

DRY_RUN = "DRY RUN on a CPU with tiny sizes: no figure below means anything."
# Columns of a line after its name.
SHOWN = (
    "model", "case", "implementation", "rows", "context", "new_tokens", "best_us", "queued_ms",
    "reading_ms", "gap_ms", "submit_ms", "ms", "tok_s", "gb_s", "of_memory", "tflop_s",
    "of_product", "of_roofline", "error", "different", "of", "verdict", "right", "failed",
)  # fmt: skip
READS = ("copy", "reading", "decode attention")
Part = Mapping[str, Any]


def shares(parts: Mapping[str, Part]) -> None:
    """Add to each rate its share of the device's measured ceiling, where known."""
    memory, product = memory_rate(parts), ceiling(parts, "product bfloat16", "tflop_s")
    for name, part in parts.items():
        for line in part.get("lines", []):
            if name == "ceilings":
                continue
            if memory and product and "least" in line:
                rates = memory * 1e9, product * 1e12
                line["of_roofline"] = round(line["ms"] / 1e3 / roofline_seconds(line, *rates), 2)
            if memory and "gb_s" in line:
                line["of_memory"] = round(line["gb_s"] / memory, 3)
            if product and "tflop_s" in line:
                line["of_product"] = round(line["tflop_s"] / product, 3)


def roofline_seconds(line: Mapping[str, Any], bandwidth: float, flops: float) -> float:
    """The least that a line's work takes: reading or computing, whichever takes longer."""
    return sum(
        one["times"] * max(one["bytes"] / bandwidth, one["operations"] / flops)
        for one in line["least"]
    )


def memory_rate(parts: Mapping[str, Part]) -> float | None:
    """GB/s of the fastest copy, reading, or decode attention, ours or torch's: XLA's own loops stay
    a fifth below what attention reads."""
    lines = (line for part in parts.values() for line in part.get("lines", []))
    rates = (line.get("gb_s") for line in lines if line["what"] in READS)
    return max(filter(None, rates), default=None)


def ceiling(parts: Mapping[str, Part], what: str, unit: str) -> float | None:
    """One measured ceiling."""
    lines = parts.get("ceilings", {}).get("lines", [])
    return next((line[unit] for line in lines if line["what"] == what), None)


def printed(run: Mapping[str, Any]) -> str:
    """The whole report as text."""
    parts = run["parts"]
    return "\n".join([
        *([DRY_RUN] if run["dry_run"] else []),
        *head(parts.get("device", {})),
        f"command: {run['command']}",
        *(line for name, part in parts.items() for line in section(name, part)),
        *beside(parts, "command buffers", "small-model", "without-command-buffers"),
        *beside(parts, "graphs updated but for temporary arrays", "updates-skip-temporary",
                "small-model"),
        *beside(parts, "graphs updated where arrays were seen to move", "updates-skip-profiled",
                "small-model"),
        *beside(parts, "all matmuls by cuBLASLt", "cublaslt-alone", "xla-matmuls"),
        *beside(parts, "graphs of few launches", "tensor-parallel", "long-graphs"),
        *beside(parts, "captured collectives", "captured-collectives", "tensor-parallel"),
        "",
        verdict(parts),
    ])  # fmt: skip


def head(part: Part) -> Iterator[str]:
    """Hardware, versions and commit."""
    for line in part.get("lines", []):
        yield f"{line['count']} x {line['kind']} ({line['capability']}), {line['driver']}"
        versions = ", ".join(f"{name} {version}" for name, version in line["versions"].items())
        yield f"commit {line['commit']}, {versions}"


def section(name: str, part: Part) -> Iterator[str]:
    """One stage."""
    yield ""
    yield f"{name}: {part['status']}, {part.get('seconds', 0)} s"
    yield from (f"  {note}" for note in part.get("notes", []))
    if name != "device":
        for what, lines in by_kind(part.get("lines", [])):
            yield from (f"  {row}" for row in table(what, lines))
    yield from (f"  left out: {what}" for what in part.get("left_out", []))
    if part.get("reason"):
        yield f"  {part['reason']}"


def by_kind(lines: list[Mapping[str, Any]]) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """Lines grouped by kind; of a sweep only the final result."""
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for line in lines:
        if "trial" not in line:
            kinds.setdefault(line["what"], []).append(line)
    yield from kinds.items()


def table(what: str, lines: list[Mapping[str, Any]]) -> Iterator[str]:
    """Aligned columns, omitting empty ones."""
    columns = [name for name in SHOWN if any(name in line for line in lines)]
    others = [name for line in lines for name in line if name not in SHOWN and name not in HIDDEN]
    columns += list(dict.fromkeys(others))
    rows = [columns, *([shown(line.get(name)) for name in columns] for line in lines)]
    yield what
    yield from (f"  {line}" for line in aligned(rows))


HIDDEN = ("what", "median_us", "tolerance", "bytes", "moved", "operations", "kernels", "least")


def shown(value: Any) -> str:
    """Format a cell."""
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) and abs(value) < 1 else str(value)


def beside(
    parts: Mapping[str, Part], what: str, stage_with: str, stage_without: str
) -> Iterator[str]:
    """Steps with and without an option, side by side."""
    apart, together = (
        {
            (line["rows"], line["context"]): line["queued_ms"]
            for line in parts.get(name, {}).get("lines", [])
            if "queued_ms" in line
        }
        for name in (stage_without, stage_with)
    )
    for rows, context in sorted(apart.keys() & together.keys()):
        one, other = together[rows, context], apart[rows, context]
        yield (
            f"{what}, {rows} x {context}: {one} ms a step with, {other} without "
            f"({other / one:.2f} x)"
        )


def verdict(parts: Mapping[str, Part]) -> str:
    """One line: whether everything ran and was correct."""
    wrong = [
        f"{line['what']} {line['case']}"
        for part in parts.values()
        for line in part.get("lines", [])
        if line.get("right") is False
    ]
    ended = {name: part["status"] for name, part in parts.items() if part["status"] != "done"}
    words = [f"{name} {status}" for name, status in ended.items()]
    checked = sum("right" in line for part in parts.values() for line in part.get("lines", []))
    return (
        f"numerics: {'WRONG: ' + '; '.join(wrong) if wrong else f'none wrong of {checked}'}. "
        f"stages: {', '.join(words) if words else 'all done'}."
    )


def succeeded(parts: Mapping[str, Part]) -> bool:
    """Whether all checks passed and no stage failed. Skipped or timed-out stages do not count as
    failures."""
    right = all(
        line.get("right", True) for part in parts.values() for line in part.get("lines", [])
    )
    return right and all(part["status"] != "failed" for part in parts.values())
