"""When an answer counts as repeating itself, and settings that are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jengine import SamplingParams
from jengine.errors import RequestError
from jengine.repetition_detection import RepetitionDetectionParams

TOKENS = st.lists(st.integers(0, 2), max_size=14)


@given(TOKENS, st.integers(0, 4), st.integers(0, 4), st.integers(2, 4))
def test_a_repetition_is_a_pattern_so_often_at_the_end(
    answer: list[int], least: int, more: int, count: int
) -> None:
    rule = RepetitionDetectionParams(least + more, least, count)
    sizes = range(max(least, 1), least + more + 1)
    expected = any(
        size * count <= len(answer) and answer[-size:] * count == answer[-size * count :]
        for size in sizes
    )
    assert rule.found_in(answer) == expected
    assert rule.found_in(answer[-rule.longest :] if rule.longest else []) == expected


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"max_pattern_size": 3}, "min_count=0; expected at least 2"),
        ({"max_pattern_size": 1, "min_pattern_size": 2, "min_count": 2}, "above"),
        ({"max_pattern_size": -1}, "repetition_detection.max_pattern_size=-1"),
        ({"max_patern_size": 3}, "it knows max_pattern_size"),
        (3, "is a int; expected RepetitionDetectionParams"),
    ],
)
def test_settings_that_mean_nothing_are_refused(given: object, match: str) -> None:
    with pytest.raises(RequestError, match=match):
        SamplingParams(repetition_detection=given)  # type: ignore[arg-type]


def test_a_dict_is_taken_as_parameters() -> None:
    rule = RepetitionDetectionParams(4, 0, 3)
    params = SamplingParams(repetition_detection={"max_pattern_size": 4, "min_count": 3})
    assert params.repetition_detection == rule
    assert SamplingParams(repetition_detection=rule).clone().repetition_detection == rule
