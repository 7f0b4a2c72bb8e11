"""A plan on paper as a page of charts.

In: a Paper. Out: HTML, whose figures are those that the plan has for other batches.
"""

from __future__ import annotations

from dataclasses import replace

from jengine.capacity.paper import Paper
from jengine.capacity.paper_report import advice, as_text, heading
from jengine.pictures.chart_parts import Markup
from jengine.pictures.charts import Series, bars
from jengine.pictures.page import Columns, Section, Verbatim, curves, report


def as_page(paper: Paper) -> str:
    """The page: memory, speed by the size of the batch, and the plan as text."""
    title, layout = heading(paper)
    verdict = (
        "It fits." if paper.fits else "It does not fit. " + " ".join(filter(None, advice(paper)))
    )
    return report(
        title, [f"{layout}. {verdict}"],
        Section("Memory of one device", "Shares of what is usable.", memory_chart(paper)),
        Columns(*speed_charts(paper)), Section("The plan", Verbatim(as_text(paper))),
        name=f"jengine plan: {paper.name}",
    )  # fmt: skip


def memory_chart(paper: Paper) -> Markup:
    """Chart of the device's memory by use; exceeds 100 % if the model does not fit."""
    memory = paper.memory
    shares = {
        "weights": memory.weights,
        "arriving": memory.arriving,
        "row state": memory.row_state,
        "scratch": memory.scratch,
        "cache": max(memory.cache, 0),
    }
    found = {name: size / memory.usable for name, size in shares.items() if size}
    return bars(list(found), [Series("share", "ours", list(found.values()))], title="memory")


def speed_charts(paper: Paper) -> list[Section]:
    """Tokens per second, and time per token of one request, by the requests that decode at once."""
    sizes = [2**power for power in range(paper.requests.bit_length())]
    if not sizes:
        return []
    works = [replace(paper.work, batch=size) for size in sizes]
    seconds = [paper.timing.decode(work).expected for work in works]
    all_of_them = [
        paper.timing.tokens_a_second(work, one) for work, one in zip(works, seconds, strict=True)
    ]
    each = [paper.memory.layout.pp * one * 1e3 for one in seconds]
    labels = list(map(str, sizes))
    lead = f"By requests of {paper.work.context:,} tokens that decode at once in a replica."
    return [
        curves(words, lead, {words: values}, labels)
        for words, values in (
            ("Output tokens per second of all replicas", all_of_them),
            ("Milliseconds per token of one request", each),
        )
    ]
