"""The table of configurations: sizes, differences, and speed beside that of the plain model."""

from __future__ import annotations

from dataclasses import replace

from jengine.research.scheme_results import SchemeComparison, SchemeResult

ONE = SchemeResult(
    name="--dtype float32", weight_bytes=8_000_000, cache_bytes_per_token=2560.0,
    tokens_per_second=50.0, perplexity=2.0, kl=(0.0, 0.0), agreement={1: 1.0}, given_difference=0.0,
)  # fmt: skip


def comparison(*schemes: SchemeResult) -> SchemeComparison:
    return SchemeComparison("demo", 1, 2, ONE.name, schemes, "jengine compare", {})


def test_speed_is_shown_beside_that_of_bfloat16() -> None:
    plain = replace(ONE, name="--dtype bfloat16", tokens_per_second=100.0)
    int8 = replace(ONE, name="--quantization int8", tokens_per_second=150.0)
    head, *rows = comparison(ONE, plain, int8).rows()
    assert head[-2:] == ["tok/s", "of plain"]
    assert [row[-2:] for row in rows] == [["50.0", "0.50"], ["100.0", "1.00"], ["150.0", "1.50"]]
    # Without bfloat16 among them, the first is the measure.
    _, *rows = comparison(ONE, int8).rows()
    assert [row[-1] for row in rows] == ["1.00", "3.00"]


def test_without_speed_there_are_no_such_columns() -> None:
    head, row = comparison(replace(ONE, tokens_per_second=None)).rows()
    assert len(head) == len(row) and "tok/s" not in head
