"""Transcript: text, tokens and end of one completion, streamed or not."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jengine.errors import RequestError
from jengine.text.tokenizer import REPLACEMENT, Tokenizer
from jengine.text.transcript import Transcript, TranscriptDelta
from tests.text.test_detokenizer import assert_equal_but_for_an_unfinished_end

EOS = 2


def transcribe(
    tokenizer: Tokenizer, text: str, *, size: int = 1, **options: object
) -> tuple[Transcript, list[TranscriptDelta]]:
    """Push the tokens of `text` and an EOS in groups of `size`, taking a delta after each."""
    transcript = Transcript(tokenizer, **options)
    ids = [*tokenizer.encode(text), EOS]
    deltas = []
    for start in range(0, len(ids), size):
        last = start + size >= len(ids)
        transcript.push(ids[start : start + size], "stop" if last else None)
        deltas.append(transcript.take_delta())
    return transcript, deltas


@settings(max_examples=150, deadline=None)
@given(
    text=st.text(alphabet="ab 好😀", max_size=24),
    stop=st.lists(st.text(alphabet="ab 好😀", min_size=1, max_size=4), max_size=3),
    include=st.booleans(),
    skip=st.booleans(),
    size=st.integers(1, 7),
    min_tokens=st.integers(0, 6),
)
def test_deltas_concatenate_and_grouping_does_not_matter(
    byte_level: Tokenizer,
    text: str,
    stop: list[str],
    include: bool,
    skip: bool,
    size: int,
    min_tokens: int,
) -> None:
    options = {
        "stop": stop,
        "include_stop_str_in_output": include,
        "skip_special_tokens": skip,
        "min_tokens": min_tokens,
    }
    streamed, deltas = transcribe(byte_level, text, size=size, **options)
    whole, _ = transcribe(byte_level, text, size=1000, **options)
    assert "".join(delta.text for delta in deltas) == streamed.visible_text()
    assert list(chain.from_iterable(delta.token_ids for delta in deltas)) == streamed.token_ids
    assert streamed.visible_text() == whole.visible_text()
    assert streamed.token_ids == whole.token_ids
    assert (streamed.finish_reason, streamed.stop_reason) == ("stop", whole.stop_reason)
    if not include and not min_tokens:
        assert not any(string in streamed.visible_text() for string in stop)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_random_ids_give_the_whole_decode(byte_level: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, byte_level.vocab_size - 1), min_size=1, max_size=50))
    transcript = Transcript(byte_level)
    for number in ids[:-1]:
        transcript.push([number])
    assert not transcript.push(ids[-1:], "length")
    assert_equal_but_for_an_unfinished_end(transcript.visible_text(), byte_level.decode(ids))
    assert transcript.token_ids == ids


def test_eos_stays_in_the_tokens_and_out_of_the_text(byte_level: Tokenizer) -> None:
    transcript, _ = transcribe(byte_level, "hello", skip_special_tokens=False)
    assert transcript.visible_text() == "hello"
    assert transcript.token_ids[-1] == EOS
    shown, _ = transcribe(
        byte_level, "hello", skip_special_tokens=False, include_stop_str_in_output=True
    )
    assert shown.visible_text() == "hello<|eos|>"


def test_an_ordinary_stop_token_is_left_out_as_well(byte_level: Tokenizer) -> None:
    hello, bang = byte_level.encode("hello"), byte_level.encode("!")
    transcript = Transcript(byte_level)
    assert not transcript.push([*hello, *bang], "stop", bang[0])
    assert transcript.visible_text() == "hello"
    assert transcript.token_ids == [*hello, *bang]
    assert transcript.stop_reason == bang[0]


def test_a_token_that_merely_comes_last_is_shown(byte_level: Tokenizer) -> None:
    transcript = Transcript(byte_level)
    transcript.push(byte_level.encode("hello!"), "length")
    assert transcript.visible_text() == "hello!"


def test_a_stop_string_cuts_text_and_tokens_and_asks_for_an_abort(byte_level: Tokenizer) -> None:
    before, after = byte_level.encode("a <x>"), byte_level.encode(" more")
    transcript = Transcript(byte_level, stop=["<x>"])
    assert transcript.push([*before, *after]) is True
    assert transcript.visible_text() == "a "
    assert transcript.token_ids == before
    assert (transcript.finish_reason, transcript.stop_reason) == ("stop", "<x>")


def test_nothing_is_taken_after_the_end(byte_level: Tokenizer) -> None:
    transcript = Transcript(byte_level, stop=["b"])
    assert transcript.push(byte_level.encode("cb"))
    first = transcript.take_delta()
    assert transcript.push(byte_level.encode("late"), "length") is False
    transcript.finish("abort")
    assert transcript.take_delta() == TranscriptDelta("", [])
    assert transcript.visible_text() == first.text == "c"
    assert transcript.finish_reason == "stop"


def test_no_abort_is_needed_when_the_engine_ended_it_too(byte_level: Tokenizer) -> None:
    transcript = Transcript(byte_level, stop=["b"])
    assert transcript.push(byte_level.encode("cb"), "length") is False
    assert (transcript.finish_reason, transcript.stop_reason) == ("stop", "b")


@pytest.mark.parametrize("stop", ["好", "x好", "好😀", "😀y", "好😀y"])
def test_stop_strings_across_tokens_and_bytes_never_leak(byte_level: Tokenizer, stop: str) -> None:
    transcript, deltas = transcribe(byte_level, "ax好😀yb", stop=[stop])
    shown = ""
    for delta in deltas:
        shown += delta.text
        assert "ax好😀yb".partition(stop)[0].startswith(shown)
    assert transcript.visible_text() == shown == "ax好😀yb".partition(stop)[0]
    assert transcript.stop_reason == stop


def test_min_tokens_delays_the_search(byte_level: Tokenizer) -> None:
    ids = [byte_level.encode(letter)[0] for letter in "abab"]
    transcript = Transcript(byte_level, stop=["a"], min_tokens=2)
    assert transcript.push(ids) is True
    assert transcript.visible_text() == "ab"
    assert transcript.token_ids == ids[:3]
    late = Transcript(byte_level, stop=["a"], min_tokens=3)
    assert late.push(ids) is False
    late.finish("length")
    assert late.visible_text() == "abab"


def test_a_stop_string_may_begin_before_min_tokens_is_exceeded(byte_level: Tokenizer) -> None:
    ids = [byte_level.encode(letter)[0] for letter in "xab"]
    transcript = Transcript(byte_level, stop=["ab"], min_tokens=2)
    assert transcript.push(ids) is True
    assert transcript.visible_text() == "x"


def test_the_end_releases_what_was_held_back(byte_level: Tokenizer) -> None:
    transcript = Transcript(byte_level, stop=["longer"])
    transcript.push(byte_level.encode("abc"))
    assert transcript.visible_text() == ""
    assert transcript.take_delta().text == ""
    transcript.finish("abort")
    assert transcript.take_delta().text == transcript.visible_text() == "abc"
    assert transcript.finish_reason == "abort"


def test_the_end_withholds_an_unfinished_character(byte_level: Tokenizer) -> None:
    for stop in ([], [REPLACEMENT]):
        transcript = Transcript(byte_level, stop=stop)
        transcript.push(byte_level.encode("a😀")[:-1], "length")
        assert (transcript.visible_text(), transcript.finish_reason) == ("a", "length")
        assert len(transcript.token_ids) == len(byte_level.encode("a😀")) - 1


def test_an_end_without_tokens(byte_level: Tokenizer) -> None:
    transcript = Transcript(byte_level)
    assert transcript.push([], "abort") is False
    assert transcript.finished
    assert transcript.take_delta() == TranscriptDelta("", [])


def test_the_prompt_is_context(byte_fallback: Tokenizer) -> None:
    first, second = byte_fallback.hf.convert_tokens_to_ids(["▁a", "▁b"])
    with_prompt, without = Transcript(byte_fallback, [first]), Transcript(byte_fallback)
    for transcript in (with_prompt, without):
        transcript.push([second], "length")
    assert (with_prompt.visible_text(), without.visible_text()) == (" b", "b")


def test_without_detokenizing_there_are_only_tokens() -> None:
    transcript = Transcript(None, detokenize=False)
    assert transcript.push([5, 6], "stop") is False
    assert transcript.take_delta() == TranscriptDelta("", [5, 6])
    assert transcript.visible_text() == ""


def test_options_that_need_text_are_refused_without_it(byte_level: Tokenizer) -> None:
    with pytest.raises(RequestError, match="detokenize=True"):
        Transcript(byte_level, stop=["a"], detokenize=False)
    with pytest.raises(RequestError, match="no tokenizer"):
        Transcript(None)
