"""The share of padding in a trace of chats, counted by the ledger on the host alone."""

from __future__ import annotations

import dataclasses

import pytest

from jengine.bench import padding
from jengine.bench.padding import ANSWERS, PROMPTS, run, trace


def test_lengths_are_like_those_of_chats() -> None:
    chats = trace(4000, None)
    assert 200 < sum(chat.prompt for chat in chats) / 4000 < 240
    assert 180 < sum(chat.answer for chat in chats) / 4000 < 220
    assert PROMPTS != ANSWERS and trace(5, 2.0) == trace(5, 2.0) != trace(5, 2.0, seed=1)


def test_little_of_a_prefill_is_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    chats = trace(400, None)
    cut = run(chats)
    assert cut.ledger.prefill_padding < 0.05
    assert 1 - cut.useful_seconds / cut.seconds < 0.05
    usual = padding.DEVICE_DEFAULTS["gpu"]
    whole = {"gpu": dataclasses.replace(usual, cut_prompts=False)}
    monkeypatch.setattr(padding, "DEVICE_DEFAULTS", whole)
    uncut = run(chats)
    assert uncut.ledger.prefill_padding > cut.ledger.prefill_padding + 0.05
    assert uncut.seconds > cut.seconds
    answers = {sum(e.useful_prompt_tokens for e in one.ledger.entries.values())
               for one in (cut, uncut)}  # fmt: skip
    assert answers == {sum(chat.prompt for chat in chats)}
