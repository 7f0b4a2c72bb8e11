"""Rows of tokens: of a request's own steps, of cached blocks, of drafts, and of steps in flight."""

from __future__ import annotations

import numpy as np

from jengine.kvcache.token_records import TokenRecords
from jengine.request import Request
from tests.kvcache.cache_cases import make_request

SIZE = 4
CONTENTS = [b"a", b"b", b"c"]


def rows(*values: int) -> np.ndarray:
    return np.array(values, np.uint8)[:, None, None]


def taken(records: TokenRecords, request: Request, end: int) -> list[int] | None:
    found = records.take(request, end)
    return None if found is None else found.ravel().tolist()


def admitted(records: TokenRecords, hit: int = 0) -> Request:
    request = make_request(list(range(10)))
    records.begin(request, CONTENTS[:hit])
    return request


def test_a_requests_own_rows_are_taken_once_each() -> None:
    records = TokenRecords(SIZE, 8)
    request = admitted(records)
    records.add(request, 0, rows(1, 2, 3), 3)
    assert taken(records, request, 2) == [1, 2]
    records.add(request, None, rows(4), 1)
    assert taken(records, request, 4) == [3, 4]
    assert taken(records, request, 4) is None


def test_a_prefix_that_is_still_being_computed_has_the_rows_of_that_step() -> None:
    records = TokenRecords(SIZE, 8)
    first = admitted(records)
    records.publish(first, CONTENTS, 2)  # its step is planned and not read
    assert records.longest_hit(CONTENTS, 3) == 2
    second = admitted(records, hit=2)
    records.add(first, 0, rows(*range(10)), 10)
    records.add(second, 8, rows(98, 99), 2)
    assert taken(records, second, 10) == [*range(8), 98, 99]


def test_rows_of_a_request_that_was_preempted_in_flight_are_its_own_prefix() -> None:
    records = TokenRecords(SIZE, 8)
    request = admitted(records)
    records.publish(request, CONTENTS, 2)
    records.begin(request, CONTENTS[:2])  # admitted again before its step was read
    records.add(request, 0, rows(*range(8)), 8)
    records.add(request, 8, rows(98, 99), 2)
    assert taken(records, request, 10) == [*range(8), 98, 99]


def test_blocks_filled_by_decodes_are_found_too() -> None:
    records = TokenRecords(SIZE, 8)
    first = admitted(records)
    records.add(first, 0, rows(1, 2, 3), 3)
    records.add(first, None, rows(4), 1)
    records.publish(first, CONTENTS, 1)
    assert taken(records, admitted(records, hit=1), 4) == [1, 2, 3, 4]


def test_rejected_drafts_have_no_rows() -> None:
    records = TokenRecords(SIZE, 8)
    request = admitted(records)
    records.add(request, 0, rows(0, 1), 2)
    records.add(request, None, rows(2, 3, 77, 78), 2)  # two of four tokens count
    records.add(request, None, rows(4, 5), 2)
    records.publish(request, CONTENTS, 1)
    assert taken(records, request, 6) == [0, 1, 2, 3, 4, 5]
    assert taken(records, admitted(records, hit=1), 4) == [0, 1, 2, 3]


def test_hits_end_where_rows_are_not_kept() -> None:
    records = TokenRecords(SIZE, most=2)
    request = admitted(records)
    records.add(request, 0, rows(*range(12)), 12)
    records.publish(request, CONTENTS, 3)
    assert records.longest_hit(CONTENTS, 3) == 0  # the first one had to go
    assert records.longest_hit(CONTENTS[1:], 2) == 2


def test_steps_that_are_never_read_leave_no_blocks() -> None:
    records = TokenRecords(SIZE, 8)
    request = admitted(records)
    records.publish(request, CONTENTS, 2)
    records.forget()
    assert records.longest_hit(CONTENTS, 3) == 0
