"""Workloads say the same every time, and those with repeating answers do repeat."""

from __future__ import annotations

from pathlib import Path

import pytest

from jengine.bench.workloads import WORKLOADS, Item, encoder_of, generated
from jengine.demo import model_path
from jengine.errors import ConfigError
from jengine.speculative.ngram import NgramProposer

ENCODE = encoder_of(model_path())


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_seed_gives_the_same_requests(name: str) -> None:
    first, again = (generated(name, 2048, 4, encode=ENCODE) for _ in range(2))
    assert first == again
    assert len(first) == 4
    assert generated(name, 2048, 4, seed=1, encode=ENCODE) != first
    assert all(0 <= token < 2048 for item in first for token in item.prompt_token_ids)


def predicted(item: Item, last: int) -> float:
    """The share of a prompt's last tokens that a match of two tokens before them tells."""
    tokens, right = item.prompt_token_ids, 0
    for end in range(len(tokens) - last, len(tokens)):
        row = NgramProposer(2, 4).begin(tokens[:end], end)
        right += row.propose(1).tolist() == [tokens[end]]
    return right / last


@pytest.mark.parametrize(("name", "least"), [("edit", 0.4), ("summary", 0.6), ("objects", 0.5)])
def test_answers_are_told_by_what_stands_before(name: str, least: float) -> None:
    """The prompt ends with the begun answer."""
    items = generated(name, 2048, 8, encode=ENCODE)
    assert sum(predicted(item, 24) for item in items) / len(items) > least
    plain = generated("mixed", 2048, 8)
    assert sum(predicted(item, 8) for item in plain) == 0


def test_a_workload_of_text_needs_a_tokenizer(tmp_path: Path) -> None:
    assert encoder_of(tmp_path) is None and encoder_of(None) is None
    with pytest.raises(ConfigError, match=r"--workload stories is text"):
        generated("stories", 2048)
