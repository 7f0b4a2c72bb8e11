"""Proposers against searches that try every place, and the bounds of what they keep."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from jengine.speculative.matches import own_matches
from jengine.speculative.ngram import NgramProposer, after_match
from jengine.speculative.past_outputs import PastOutputs, pair_hashes
from jengine.speculative.proposer import TokenText
from jengine.speculative.suffix import SuffixProposer, walk

QUICK = settings(derandomize=True, deadline=None, max_examples=80)
TEXTS = st.lists(st.integers(0, 2), min_size=1, max_size=40)


def array_of(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, np.int32)


def ends_with(tokens: list[int], end: int, length: int) -> bool:
    """Whether the last `length` tokens also stand before `end`."""
    return end >= length and tokens[end - length : end] == tokens[-length:]


def first_occurrence(tokens: list[int], least: int, most: int) -> int | None:
    """Where the earliest occurrence of the longest n-gram ends, trying all."""
    for length in range(min(most, len(tokens) - 1), least - 1, -1):
        for end in range(length, len(tokens)):
            if ends_with(tokens, end, length):
                return end
    return None


@QUICK
@given(TEXTS, st.integers(1, 4), st.integers(0, 4))
def test_the_longest_ngram_is_found_where_it_stands_first(
    tokens: list[int], least: int, more: int
) -> None:
    expected = first_occurrence(tokens, least, least + more)
    assert after_match(array_of(tokens), least, least + more) == expected


@QUICK
@given(st.lists(st.sampled_from([0, 1, 256, 65536]), min_size=2, max_size=30), st.integers(1, 4))
def test_a_search_of_bytes_finds_whole_tokens(tokens: list[int], count: int) -> None:
    """Bytes of these tokens are alike where the tokens are not."""
    text, expected = TokenText(tokens), first_occurrence(tokens, count, count)
    assert text.repeats(count) == (expected is not None)


@QUICK
@given(TEXTS, TEXTS, st.integers(1, 6), st.integers(0, 6))
def test_ngram_drafts_follow_the_match_and_then_themselves(
    prompt: list[int], more: list[int], count: int, ahead: int
) -> None:
    row = NgramProposer(1, 3).begin(prompt, len(prompt))
    row.extend(more)
    tokens = prompt + more
    drafts = row.propose(count, ahead).tolist()
    start = first_occurrence(tokens, 1, 3)
    if start is None:
        assert drafts == []
        return
    assert len(drafts) == count + ahead
    text = tokens + drafts
    assert drafts == text[start : start + len(drafts)]


@QUICK
@given(TEXTS, st.integers(1, 6))
def test_own_matches_are_all_places_of_each_length(tokens: list[int], depth: int) -> None:
    found = own_matches(array_of(tokens), depth)
    lengths = [match.length for match in found]
    assert lengths == sorted(set(lengths))
    for match in found:
        every = [end for end in range(1, len(tokens)) if ends_with(tokens, end, match.length)]
        assert match.places.tolist() == every
    longest = max(
        (n for n in range(1, depth + 1) if first_occurrence(tokens, n, n) is not None), default=0
    )
    assert max(lengths, default=0) == longest


def test_the_most_frequent_continuation_is_drafted() -> None:
    #        7 8 1, 7 8 2 3, 7 8 2 4, 7 8
    tokens = [7, 8, 1, 7, 8, 2, 3, 7, 8, 2, 4, 7, 8]
    row = SuffixProposer(8, 2.0, 0.5, None).begin(tokens, len(tokens))
    assert row.propose(4).tolist() == [2]  # 2 of 3; then 3 and 4 are 1 of 3 each
    assert SuffixProposer(8, 0.4, 0.1, None).begin(tokens, len(tokens)).propose(4).size == 0
    lax = SuffixProposer(8, 2.0, 0.3, None).begin(tokens, len(tokens)).propose(4).tolist()
    assert lax == [2, 3, 7, 8]  # one place is left after 2, and is copied


def test_a_probability_is_a_share_of_all_places() -> None:
    text = array_of([5, 1, -1, 5, 2, -1, 5])
    draft = walk(text, np.array([1, 4, 7]), 3, 0.4)
    assert draft.drafts == []  # each is 1 of 3, as one output ends there


@pytest.mark.parametrize("count", [1, 2, 5, 9])
def test_a_single_place_is_copied_beyond_the_end_of_the_text(count: int) -> None:
    row = SuffixProposer(8, 9.0, 0.1, None).begin([1, 2, 3, 9, 1, 2, 3], 7)
    assert row.propose(count).tolist() == ([9, 1, 2, 3] * 3)[:count]


def test_drafts_ahead_do_not_count_against_the_match() -> None:
    tokens = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2]
    row = SuffixProposer(8, 1.0, 0.1, None).begin(tokens, len(tokens))
    assert row.propose(6).tolist() == [3, 4]
    assert row.propose(6, ahead=3).tolist() == [3, 4, 5, 6, 7]


def test_outputs_of_ended_requests_are_drafted_and_prompts_are_not() -> None:
    proposer = SuffixProposer(8, 4.0, 0.1, PastOutputs(10))
    first = proposer.begin([1, 2, 3], 3)
    first.extend([5, 6, 7, 8, 9])
    second = proposer.begin([9, 5, 6], 3)
    assert second.propose(3).size == 0
    first.close()
    assert second.propose(8).tolist() == [7, 8, 9]  # and no token of another output
    assert proposer.begin([0, 1, 2], 3).propose(3).size == 0


@QUICK
@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=14),
    st.lists(st.integers(0, 2), min_size=2, max_size=6),
    st.integers(1, 5),
)
def test_past_outputs_are_found_and_the_oldest_are_forgotten(
    outputs: list[list[int]], last: list[int], most_outputs: int
) -> None:
    past = PastOutputs(most_outputs, most_tokens=24)
    for output in outputs:
        past.add(array_of(output))
        assert len(past) <= most_outputs
        assert len(past.tokens) <= 48
    kept = outputs[-most_outputs:]
    found = [
        sorted(output[place:] for output in kept for place in places_after(output, last[-length:]))
        for length in range(2, len(last) + 1)
    ]
    got = past.matches(array_of(last))
    if sum(len(output) + 1 for output in outputs) <= 24:  # nothing went for lack of room
        assert [len(match.places) for match in got] == sorted(
            {len(places) for places in found if places}, reverse=True
        )
    text = past.tokens.tolist()
    for match in got:
        for place in match.places.tolist():
            assert text[place - match.length : place] == last[-match.length :]
            assert rest_of_output(text, place) in found[match.length - 2]


def places_after(output: list[int], last: list[int]) -> list[int]:
    return [
        end for end in range(len(last), len(output) + 1) if output[end - len(last) : end] == last
    ]


def rest_of_output(text: list[int], place: int) -> list[int]:
    return text[place : text.index(-1, place)]


def test_past_outputs_take_bounded_memory_and_forget_nothing_that_fits() -> None:
    past = PastOutputs(10**6, most_tokens=1000)
    size = past._room.nbytes
    for number in range(500):
        past.add(np.arange(number, number + 30, dtype=np.int32))
    assert past._room.nbytes == size
    assert len(past) >= 1000 // 31
    last = np.arange(505, 510, dtype=np.int32)
    assert [match.length for match in past.matches(last)] == [5]
    assert past.matches(np.arange(5, 10, dtype=np.int32)) == []
    past.add(np.arange(5000, dtype=np.int32))  # longer than the room
    assert past.tokens[-2] == 4999


def test_no_outputs_are_kept_where_none_are_wanted() -> None:
    past = PastOutputs(0)
    past.add(array_of([1, 2, 3]))
    assert len(past) == 0
    assert past.matches(array_of([1, 2])) == []


def test_equal_pairs_have_equal_hashes() -> None:
    hashes = pair_hashes(array_of([3, 4, 3, 4, 5]))
    assert hashes[0] == hashes[2]
    assert len(set(hashes.tolist())) > 1


@QUICK
@given(TEXTS, st.lists(TEXTS, max_size=30))
def test_a_text_grows(first: list[int], more: list[list[int]]) -> None:
    text, expected = TokenText(first), list(first)
    for tokens in more:
        text.extend(tokens)
        expected += tokens
        assert text.tokens.tolist() == expected
        assert len(text) == len(expected)
