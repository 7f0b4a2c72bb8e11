"""Token deltas that have come as msgpack."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from jengine.logprobs import StepLogprobs
from jengine.outputs import TokenDelta


def read_scores(delta: TokenDelta) -> None:
    """Make the log-probabilities of a delta what they were: a named tuple arrives as a list.

    Raises a msgspec.ValidationError if they are not three arrays.
    """
    delta.logprobs = _scores(delta.logprobs)
    delta.prompt_logprobs = _scores(delta.prompt_logprobs)


def _scores(parts: Any) -> StepLogprobs | None:
    if parts is None:
        return None
    whole = isinstance(parts, list) and len(parts) == len(StepLogprobs._fields)
    if not whole or not all(isinstance(part, np.ndarray) for part in parts):
        raise msgspec.ValidationError("log-probabilities that are not three arrays")
    return StepLogprobs(*parts)
