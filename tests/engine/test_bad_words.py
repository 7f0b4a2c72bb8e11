"""Which tokens bad words forbid: those of vLLM."""

from __future__ import annotations

import pytest

import jengine
from jengine.engine.input_processor import bad_word_ids
from jengine.errors import RequestError
from jengine.text.tokenizer import Tokenizer
from tests.engine.scripted import scripted_engine
from tests.server.serving import letters
from tests.text.conftest import build_byte_fallback, build_byte_level


@pytest.mark.parametrize(("word", "lengths"), [("the", [1, 1]), ("world", [2]), ("hello", [1])])
def test_a_word_after_a_space_counts_where_it_is_as_long(word: str, lengths: list[int]) -> None:
    """The space before a word that is given makes no difference."""
    tokenizer = Tokenizer(build_byte_level())
    both = [tokenizer.encode(text, False) for text in (word, f" {word}")]
    for given in (word, f" {word}", f"  {word}"):
        found = bad_word_ids(tokenizer, given)
        assert found == both[: len(lengths)] and [len(one) for one in found] == lengths


def test_a_tokenizer_that_writes_the_space_anyway_has_one_form() -> None:
    tokenizer = Tokenizer(build_byte_fallback())
    assert bad_word_ids(tokenizer, " ab") == [tokenizer.encode("ab", False)]


@pytest.mark.parametrize(
    ("words", "match"),
    [(["a", " "], "' ' has no tokens"), ([" " * 99 + "a" * 99] * 11, "11 words, .* 1089 tokens")],
)
def test_what_cannot_be_forbidden_is_refused(words: list[str], match: str) -> None:
    params = jengine.SamplingParams(bad_words=words)
    with (
        jengine.LLM.over(scripted_engine(tokenizer=letters())) as llm,
        pytest.raises(RequestError, match=match),
    ):
        llm.generate("a", params, use_tqdm=False)
