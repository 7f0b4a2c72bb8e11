"""Upper bounds of histogram buckets, by family: vLLM's, so that its dashboards fit."""

from __future__ import annotations

from itertools import count

from jengine.counts import BLOCK_SECONDS, STEP_SECONDS, STEP_TOKENS

TIME_TO_FIRST_TOKEN = (
    .001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160,
    640, 2560,
)  # fmt: skip
INTER_TOKEN = (
    .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
)  # fmt: skip
REQUEST_LATENCY = (
    .3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
)  # fmt: skip
SMALL_INTEGERS = (1, 2, 5, 10, 20)
PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)
REQUEST_TOKENS = "request tokens"  # its bounds depend on the longest context

FAMILIES: dict[str, tuple[float, ...]] = {
    "time to first token": TIME_TO_FIRST_TOKEN,
    "inter-token": INTER_TOKEN,
    "request latency": REQUEST_LATENCY,
    "small integers": SMALL_INTEGERS,
    "preemptions": PREEMPTIONS,
    "step tokens": STEP_TOKENS,
    "step seconds": STEP_SECONDS,
    "block residency": BLOCK_SECONDS,
}


def bounds(family: str, max_model_len: int) -> tuple[float, ...]:
    """The bounds of a family's buckets."""
    return request_tokens(max_model_len) if family == REQUEST_TOKENS else FAMILIES[family]


def request_tokens(max_model_len: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50 and so on, up to the longest context."""
    found: list[float] = []
    for power in count():
        for digit in (1, 2, 5):
            if digit * 10**power > max_model_len:
                return tuple(found)
            found.append(digit * 10**power)
    raise AssertionError("count() does not end")
