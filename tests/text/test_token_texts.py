"""The texts of single tokens: decoded once each, the same as in their context."""

from __future__ import annotations

import pytest

from jengine.text.token_texts import TokenTexts
from jengine.text.tokenizer import Tokenizer

SAMPLES = ("hello  world", "naïve café", "日本語 🙂🙃", "a\n\tb", "x" * 9)


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback", "pure_python"])
def test_texts_are_those_of_tokens_in_their_context(
    name: str, request: pytest.FixtureRequest
) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    texts = TokenTexts(tokenizer)
    others = list(range(min(tokenizer.vocab_size, 60)))
    for sample in SAMPLES:
        ids = tokenizer.encode(sample, add_special_tokens=False)
        for end in range(1, len(ids)):
            context, wanted = ids[max(0, end - 3) : end], [ids[end], *others]
            expected = [tokenizer.token_text(number, context) for number in wanted]
            assert texts.of(wanted, context) == expected


def test_a_token_is_decoded_once(byte_level: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = TokenTexts(byte_level)
    ids = byte_level.encode("hello", add_special_tokens=False)
    first = texts.of(ids, ids[:1])
    monkeypatch.setattr(TokenTexts, "_learn", lambda *_: pytest.fail("decoded again"))
    assert texts.of(ids * 50, ids[:1]) == first * 50
