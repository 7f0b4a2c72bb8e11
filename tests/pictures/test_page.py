"""A page described once is HTML and Markdown."""

from __future__ import annotations

from jengine.pictures.chart_parts import Markup
from jengine.pictures.page import (
    Columns,
    Figure,
    Items,
    Section,
    Table,
    Verbatim,
    aligned,
    as_html,
    as_markdown,
    report,
)

CHART = Markup("<svg></svg>")
PARTS = (
    "1 < 2",
    Section("A & B", Table(("name", "n"), [("a|b", 1), (CHART, 2.5)]), Verbatim("$ <x>")),
    Columns(Figure("a chart", CHART), Items(["one", "<two>"])),
)


def test_text_is_escaped_in_html_and_markup_is_not() -> None:
    assert as_html(*PARTS) == (
        "<p>1 &lt; 2</p><section><h2>A &amp; B</h2>"
        '<div class="wide"><table><thead><tr><th>name</th><th>n</th></tr></thead><tbody>'
        "<tr><td>a|b</td><td>1</td></tr><tr><td><svg></svg></td><td>2.5</td></tr></tbody></table>"
        "</div><pre>$ &lt;x&gt;</pre></section>"
        '<div class="columns"><div><h3>a chart</h3><svg></svg></div>'
        "<div><ul><li>one</li><li>&lt;two&gt;</li></ul></div></div>"
    )


def test_the_same_in_markdown_where_a_bar_would_end_a_cell() -> None:
    assert as_markdown(*PARTS) == (
        "1 < 2\n\n## A & B\n\n| name | n |\n|---|---|\n| a\\|b | 1 |\n| <svg></svg> | 2.5 |\n\n"
        "```\n$ <x>\n```\n\n**a chart**\n\n<svg></svg>\n\n- one\n- <two>"
    )


def test_a_table_without_a_head() -> None:
    assert "thead" not in as_html(Table((), [("a", "b")]))


def test_a_report_has_its_headline_first() -> None:
    page = report("5 > 4", ["said"], CHART, name="short")
    assert "<title>short</title>" in page
    assert "<header><h1>5 &gt; 4</h1><p>said</p></header><svg></svg></main>" in page


def test_columns_of_a_terminal_are_aligned() -> None:
    assert aligned([("name", "n"), ("a", "100")]) == ["name    n", "a     100"]
