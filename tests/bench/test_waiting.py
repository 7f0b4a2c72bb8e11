"""What a step does, in calls of Python functions, does not grow with what waits."""

from __future__ import annotations

import pytest

from jengine.bench.waiting import KINDS, measure
from jengine.scheduler.planning import MOST_PARKED

CASES = [(name, family) for name, kind in KINDS.items() for family in kind.families]


@pytest.mark.parametrize(("kind", "family"), CASES)
def test_a_step_costs_the_same_whatever_the_number_of_waiting_requests(
    kind: str, family: str
) -> None:
    none, few, many = (measure(kind, family, count, steps=2) for count in (0, 40, 2000))
    if KINDS[kind].with_prefix:  # the first steps park them, so many at a time
        assert many["calls"] < none["calls"] + 70 * MOST_PARKED
    else:
        # What happens once, such as a new block of a running request, may fall into either.
        assert many["calls"] <= few["calls"] + 8
        assert few["calls"] < none["calls"] + 80
