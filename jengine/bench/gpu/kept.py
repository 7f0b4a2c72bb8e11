"""A kept run of the GPU check as a Markdown table, for the documentation. No jax here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jengine.bench.gpu.page import STAGES_OF_STEPS, lines_of
from jengine.bench.gpu.report import head, memory_rate, shares
from jengine.pictures.page import Table, as_markdown

HEAD = ("what", "case", "time", "rate", "share of the fastest seen", "torch")
STAGES_OF_KERNELS = ("kernels", "fa4", "copies")
KERNELS = ("decode attention", "prefill attention", "rotate and write")


def markdown(whole: Mapping[str, Any]) -> str:
    """Device, versions and commit, then kernels, decode steps, prompts and answers,
    and engines on the same requests."""
    parts = whole["parts"]
    shares(parts)
    theirs = {
        (line["what"], line.get("case") or case_of(line)): line
        for what in (*KERNELS, "decode")
        for line in lines_of(parts, ("torch",), what)
    }
    rows = [
        *kernel_rows(parts, theirs), *step_rows(parts, theirs), *request_rows(parts),
        *engine_rows(parts),
    ]  # fmt: skip
    about = " ".join([*head(parts["device"])])
    note = whole.get("note", "")
    return as_markdown(f"{about}: `{whole['command']}`. {note}".strip(), Table(HEAD, rows))


def kernel_rows(parts: Mapping[str, Any], theirs: Mapping[Any, Any]) -> Iterator[tuple[str, ...]]:
    for what in KERNELS:
        for line in lines_of(parts, STAGES_OF_KERNELS, what):
            unit, name = ("TFLOP/s", "tflop_s") if "tflop_s" in line else ("GB/s", "gb_s")
            share = line.get("of_product" if name == "tflop_s" else "of_memory")
            peer = theirs.get((what, line["case"]))
            kernels = "" if line["stage"] == "kernels" else f" by {line['implementation']}"
            yield (
                what + kernels, line["case"], f"{line['best_us']:,.0f} µs",
                f"{line[name]:,.0f} {unit}", percent(share),
                "" if peer is None else f"{peer['best_us']:,.0f} µs",
            )  # fmt: skip


def step_rows(parts: Mapping[str, Any], theirs: Mapping[Any, Any]) -> Iterator[tuple[str, ...]]:
    memory = memory_rate(parts)
    for line in lines_of(parts, STAGES_OF_STEPS, "decode"):
        peer = theirs.get(("decode", case_of(line)))
        share = line["gb_s"] / memory if memory else None  # not rounded twice
        yield (
            f"decode step of {line['model']}", f"{line['rows']} x {line['context']:,} tokens",
            f"{line['reading_ms']:.2f} ms", f"{line['tok_s']:,.0f} tok/s",
            percent(share), "" if peer is None else f"{peer['reading_ms']:.2f} ms",
        )  # fmt: skip


def request_rows(parts: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for what in ("prompts", "answers"):
        for line in lines_of(parts, STAGES_OF_STEPS, what):
            more = f", answers of {line['new_tokens']}" if "new_tokens" in line else ""
            yield (
                f"{what} of {line['model']}", f"{line['rows']} x {line['context']:,} tokens{more}",
                f"{line['ms']:,.0f} ms", f"{line['tok_s']:,.0f} tok/s", "", "",
            )  # fmt: skip


def engine_rows(parts: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for line in lines_of(parts, tuple(parts), "table"):
        yield (
            f"llama-8b by {line['version']}", line["case"], f"{line['ms']:,.0f} ms",
            f"{line['tok_s']:,.0f} tok/s", percent(1 / line["of_roofline"]), "",
        )  # fmt: skip


def percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def case_of(line: Mapping[str, Any]) -> str:
    return f"{line['model']} {line['rows']} x {line['context']}"
