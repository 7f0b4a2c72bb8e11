"""Streamed text is the whole decode, whatever the tokens; nothing half is ever given out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models
from tokenizers.decoders import DecodeStream
from transformers import PreTrainedTokenizerFast

from jengine.text.detokenizer import Detokenizer
from jengine.text.tokenizer import REPLACEMENT, Tokenizer

TEXT = st.text(alphabet="ab cd\n你好世界😀é\u200d👩‍👩‍👧", max_size=30)
FAST = settings(max_examples=60, deadline=None)


def stream(
    tokenizer: Tokenizer, ids: list[int], prompt: Sequence[int] = (), **options: bool
) -> str:
    detokenizer = Detokenizer(tokenizer, prompt, **options)
    return "".join([detokenizer.push([number]) for number in ids]) + detokenizer.finish()


def assert_equal_but_for_an_unfinished_end(streamed: str, whole: str) -> None:
    """The whole decode shows an unfinished character as U+FFFD, a stream withholds it."""
    assert whole.startswith(streamed)
    assert not whole[len(streamed) :].strip(REPLACEMENT)


@FAST
@given(data=st.data(), skip=st.booleans())
def test_random_byte_level_ids_equal_the_whole_decode(
    byte_level: Tokenizer, data: st.DataObject, skip: bool
) -> None:
    ids = data.draw(st.lists(st.integers(0, byte_level.vocab_size + 3), max_size=60))
    expected = byte_level.decode(ids, skip_special_tokens=skip)
    streamed = stream(byte_level, ids, skip_special_tokens=skip)
    assert_equal_but_for_an_unfinished_end(streamed, expected)


@FAST
@given(data=st.data(), skip=st.booleans())
def test_random_pure_python_ids_equal_the_whole_decode(
    pure_python: Tokenizer, data: st.DataObject, skip: bool
) -> None:
    ids = data.draw(st.lists(st.integers(0, 256), max_size=60))
    expected = pure_python.decode(ids, skip_special_tokens=skip)
    streamed = stream(pure_python, ids, skip_special_tokens=skip)
    assert_equal_but_for_an_unfinished_end(streamed, expected)


@FAST
@given(text=TEXT)
def test_byte_fallback_text_comes_back(byte_fallback: Tokenizer, text: str) -> None:
    ids = byte_fallback.encode(text)
    assert stream(byte_fallback, ids) == byte_fallback.decode(ids)


def stream_of_vllm(tokenizer: Tokenizer, ids: list[int], prompt: list[int]) -> str:
    """What vLLM streams: where bytes change text already given out, it begins anew."""
    open_stream, text = DecodeStream(ids=prompt, skip_special_tokens=True), ""
    for number in ids:
        try:
            new = open_stream.step(tokenizer.backend, number)
        except Exception as error:
            assert str(error).startswith("Invalid prefix")
            open_stream = DecodeStream(skip_special_tokens=True)
            new = open_stream.step(tokenizer.backend, number)
        text += new or ""
    return text


# Bytes that are rarely a character, and tokens that are text of their own.
SPOILED = st.sampled_from([13, 0x78 + 3, 0xE4 + 3, 0x96 + 3, 0xFF + 3, *range(259, 269)])


@FAST
@given(prompt=st.lists(SPOILED, max_size=6), ids=st.lists(SPOILED, max_size=14))
@example(prompt=[260, 13], ids=[0xFF + 3, 265, 266])  # a line break, as Llama's tokenizer has it
@example(prompt=[13, 0x20 + 3], ids=[0x96 + 3, 263])
def test_broken_bytes_are_streamed_as_by_vllm(
    byte_fallback: Tokenizer, prompt: list[int], ids: list[int]
) -> None:
    assume(not byte_fallback.decode(prompt).endswith(REPLACEMENT))
    assert stream(byte_fallback, ids, prompt) == stream_of_vllm(byte_fallback, ids, prompt)


@FAST
@given(prompt=TEXT, output=TEXT)
@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback", "pure_python"])
def test_the_prompt_gives_context_and_no_text(
    request: pytest.FixtureRequest, kind: str, prompt: str, output: str
) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    ids = tokenizer.encode(prompt + output)
    for cut in range(len(ids)):
        known, whole = tokenizer.decode(ids[:cut]), tokenizer.decode(ids)
        if not known.endswith(REPLACEMENT):
            assert stream(tokenizer, ids[cut:], ids[:cut]) == whole[len(known) :]


def test_a_character_begun_in_the_prompt_is_finished_in_the_output(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("a😀b")
    assert len(ids) == 6
    assert stream(byte_level, ids[3:], ids[:3]) == "😀b"
    assert stream(byte_level, byte_level.encode("x"), ids[:3]) == "x"


def test_a_replacement_character_in_the_prompt_stays_there(byte_level: Tokenizer) -> None:
    prompt = byte_level.encode("broken \ufffd")
    assert stream(byte_level, byte_level.encode(" text"), prompt) == " text"
    assert stream(byte_level, byte_level.encode("\ufffd text"), prompt) == "\ufffd text"


def test_priming_reads_only_the_end_of_the_prompt(byte_level: Tokenizer) -> None:
    prompt = byte_level.encode("hello world " * 50)
    detokenizer = Detokenizer(byte_level, prompt)
    assert len(detokenizer._prompt_tail(prompt)) == 4
    # Special tokens give no context, so the search goes on, but not for ever.
    assert len(detokenizer._prompt_tail([*prompt, 0, 1, 0, 1])) == 1
    assert detokenizer._prompt_tail([0] * 1000) == []
    assert len(detokenizer._prompt_tail(byte_level.encode("\ufffd") * 500)) <= 24


@FAST
@given(text=TEXT)
def test_half_a_character_is_never_given_out(byte_level: Tokenizer, text: str) -> None:
    detokenizer = Detokenizer(byte_level)
    pieces = [detokenizer.push([number]) for number in byte_level.encode(text)]
    assert not any(REPLACEMENT in piece for piece in pieces)
    assert "".join(pieces) == text


@pytest.mark.parametrize("kind", ["byte_level", "pure_python"])
def test_the_end_withholds_an_unfinished_character(
    request: pytest.FixtureRequest, kind: str
) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    ids = tokenizer.encode("a😀")[:-1]
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.push(ids) == "a"
    assert detokenizer.finish() == ""
    assert tokenizer.decode(ids) == "a" + REPLACEMENT


def test_invalid_prefix_resets_the_stream_and_goes_on(byte_fallback: Tokenizer) -> None:
    def ids(*tokens: str) -> list[int]:
        return byte_fallback.hf.convert_tokens_to_ids(list(tokens))

    # The valid byte is given out, then the run turns out invalid and its whole text changes.
    assert stream(byte_fallback, ids("<0x61>", "<0xFF>", "▁b", "a", "▁ab")) == "aba ab"


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback", "pure_python"])
@pytest.mark.parametrize("number", [-1, 2**40, 10**6, None])
def test_an_impossible_id_gives_no_text(
    request: pytest.FixtureRequest, kind: str, number: int
) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    a, b = tokenizer.encode("ab ab")[:1], tokenizer.encode("b", add_special_tokens=False)
    assert stream(tokenizer, [*a, number, *b]) == stream(tokenizer, [*a, *b])
    assert stream(tokenizer, b, [number, *a] if number else a) == stream(tokenizer, b, a)


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback", "pure_python"])
def test_a_long_run_of_broken_bytes_is_not_read_again_and_again(
    request: pytest.FixtureRequest, kind: str
) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    broken = tokenizer.encode("😀", add_special_tokens=False)[-1]
    detokenizer = Detokenizer(tokenizer)
    text = ""
    for _ in range(200):
        text += detokenizer.push([broken])
        assert len(detokenizer._pending) <= 16
    assert detokenizer.finish() == "", "the last ones may still become a character"
    assert set(text) == {REPLACEMENT} and 200 - 16 <= len(text) < 200


def test_a_long_run_of_missing_ids_keeps_the_context(byte_fallback: Tokenizer) -> None:
    first, second = byte_fallback.hf.convert_tokens_to_ids(["▁a", "▁b"])
    assert stream(byte_fallback, [first, *[100_000] * 40, second]) == "a b"


def test_a_character_across_the_settled_boundary_stays_whole(byte_level: Tokenizer) -> None:
    emoji = byte_level.encode("😀")
    for broken in range(10, 24):
        ids = emoji[-1:] * broken + emoji
        assert stream(byte_level, ids) == REPLACEMENT * broken + "😀"


def test_special_tokens_are_hidden_or_shown(byte_level: Tokenizer) -> None:
    ids = [0, *byte_level.encode("hi"), 1]
    assert stream(byte_level, ids) == "hi"
    assert stream(byte_level, ids, skip_special_tokens=False) == "<|im_start|>hi<|im_end|>"


def test_spaces_between_special_tokens() -> None:
    backend = Backend(models.WordLevel({"<unk>": 0, "hello": 1}, unk_token="<unk>"))
    backend.add_special_tokens(["<x>", "<y>"])  # no decoder: tokens are joined by spaces
    tokenizer = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend))
    ids = [1, 2, 3, 2, 1, 3]
    shown = stream(tokenizer, ids, skip_special_tokens=False)
    assert (
        shown == tokenizer.decode(ids, skip_special_tokens=False) == "hello <x> <y> <x> hello <y>"
    )
    joined = stream(tokenizer, ids, skip_special_tokens=False, spaces_between_special_tokens=False)
    assert joined == "hello <x><y><x> hello <y>"
