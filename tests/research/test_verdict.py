"""Bands: what is noise, what is not, and what cannot be told."""

from __future__ import annotations

import numpy as np
import pytest

from jengine.research.metrics import unit_roundoff
from jengine.research.verdict import EXTREME, NOISE, SUSPICIOUS, Band, judge, noise_limit

PEER = np.random.default_rng(0).uniform(0.5e-2, 1.5e-2, 400)


@pytest.mark.parametrize(
    ("times", "band"),
    [
        (0.3, Band.WITHIN_NOISE),
        (NOISE * 0.99, Band.WITHIN_NOISE),
        (NOISE * 1.01, Band.SUSPICIOUS),
        (SUSPICIOUS * 0.99, Band.SUSPICIOUS),
        (SUSPICIOUS * 1.01, Band.WRONG),
    ],
)
def test_bands_follow_the_ratio(times: float, band: Band) -> None:
    judged = judge(PEER * times, PEER, "bfloat16", equal=False)
    assert judged.band is band
    assert judged.ratios.typical == pytest.approx(times)


def test_few_positions_are_judged_less_strictly() -> None:
    few = PEER[:3]
    assert judge(few * 3, few, "bfloat16", equal=False).band is Band.WITHIN_NOISE
    assert judge(few * 10, few, "bfloat16", equal=False).band is Band.WRONG
    assert noise_limit(3) > noise_limit(10) > noise_limit(40) == NOISE == noise_limit(10**6)


def test_equal_bits_are_a_band_of_their_own() -> None:
    assert judge(PEER, PEER, "bfloat16", equal=True).band is Band.BIT_EQUAL


def test_a_peer_without_error_leaves_room_for_one_rounding() -> None:
    exact = np.zeros(10)
    rounded = np.full(10, unit_roundoff("bfloat16") / 2)
    assert judge(rounded, exact, "bfloat16", equal=False).band is Band.WITHIN_NOISE
    assert judge(rounded, exact, "float32", equal=False).band is Band.WRONG


def test_errors_at_some_positions_count_and_at_single_ones_are_pointed_at() -> None:
    some, single = PEER.copy(), PEER.copy()
    some[:80] *= 20
    single[7] = PEER.max() * EXTREME * 1.1
    assert judge(some, PEER, "bfloat16", equal=False).band is Band.WRONG
    assert judge(single, PEER, "bfloat16", equal=False).band is Band.SUSPICIOUS
    lenient = judge(single, PEER, "bfloat16", equal=False, outliers_count=False)
    assert lenient.band is Band.WITHIN_NOISE


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_what_is_not_finite_is_wrong_unless_the_peer_is_so_too(bad: float) -> None:
    broken = np.full(10, bad)
    assert judge(broken, PEER, "float16", equal=False).band is Band.WRONG
    assert judge(PEER, broken, "float16", equal=False).band is Band.WITHIN_NOISE
    assert judge(broken, broken, "float16", equal=False).band is Band.WITHIN_NOISE


def test_a_single_number_that_is_not_finite_is_not_overlooked() -> None:
    broken = PEER.copy()
    broken[3] = np.nan
    assert judge(broken, PEER, "float16", equal=False).band is not Band.WITHIN_NOISE
