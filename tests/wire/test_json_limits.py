"""JSON that would take long to decode is told from what only looks so."""

from __future__ import annotations

import json
import random
from itertools import product

import pytest

from jengine.wire.json_limits import HARMLESS_BYTES, MOST_EXTREME, MOST_NESTED, complaint_about

# Literals that msgspec reads by its slow path, on which one takes 20 to 60 us.
SLOW = [
    *("1e300", "-1e+308", "1E-308", "1.7976931348623157e308", "2.2250738585072011e-308"),
    "0." + "0" * 300 + "12345678901234567890",
]
QUICK = ["true", "false", "null", "0.1111111111111111", "12345678901234567890", '"1e300"', "{}"]


@pytest.mark.parametrize("literal", SLOW)
def test_many_slow_numbers_are_too_much(literal: str) -> None:
    few, many = ([literal] * (MOST_EXTREME + more) for more in (0, 1))
    assert complaint_about(f'{{"a": [{",".join(few)}]}}'.encode()) is None
    assert "numbers with exponents" in str(complaint_about(f"[{','.join(many)}]".encode()))


def test_slow_numbers_among_others_are_counted() -> None:
    rng = random.Random(0)
    for _ in range(20):
        mixed = rng.choices(SLOW, k=MOST_EXTREME + 1) + rng.choices(QUICK, k=5000)
        rng.shuffle(mixed)
        assert complaint_about(f'{{"e": [{", ".join(mixed)}]}}'.encode()) is not None


def test_what_only_looks_slow_passes() -> None:
    texts = ["the sentence e", "1e300, 1e300", "0" * 400, 'quoted \\" 1e300', "[[{{"]
    for text, literal in product(texts, QUICK):
        body = json.dumps({"prompt": [text] * MOST_EXTREME, "a": 0}).replace("0}", f"{literal}}}")
        assert complaint_about(body.encode()) is None, (text, literal)
    assert complaint_about(f"[{','.join(QUICK * MOST_EXTREME)}]".encode()) is None


def test_short_bodies_may_hold_anything() -> None:
    assert complaint_about(b"[" * HARMLESS_BYTES) is None
    assert "lists and objects" in str(complaint_about(b"[" * (MOST_NESTED + 1)))
