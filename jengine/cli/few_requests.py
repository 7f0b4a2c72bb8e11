"""Engine settings for one person at a terminal: few rows and one step variant start sooner, and
what the first answer does not need is compiled while it runs.

In: what the user gave. Out: the same with defaults that a command line wants. Whatever these leave
out is compiled when it is first needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# What is neutral in sampling; anything else needs the full variant.
NEUTRAL = {
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "min_tokens": 0,
    "logprobs": None,
}


def few_requests(
    settings: Mapping[str, Any], sampling: Mapping[str, Any], most: int | None
) -> dict[str, Any]:
    """Settings for at most this many requests at once (None: many) that are sampled like this."""
    result = dict(settings)
    if most is not None:
        result.setdefault("max_num_seqs", most)
    # In strict mode nothing may be compiled later, so everything is compiled at the start; in
    # deterministic mode there is one program only.
    if not result.get("strict") and not result.get("deterministic"):
        given = result.get("compilation_config", {})
        usual = {"variants": [variant(sampling)], **early_start(result)}
        result["compilation_config"] = {**usual, **given}
    return result


def early_start(settings: Mapping[str, Any]) -> dict[str, str]:
    """Answer as soon as one program is there, where the engine can.

    Programs of different sizes round differently, and which one runs depends on time then. Who
    gives a seed wants the same answer again.
    """
    here = settings.get("executor", "auto") in ("auto", "local")
    early = here and not settings.get("enforce_eager") and settings.get("seed") is None
    return {"wait_for": "largest"} if early else {}


def variant(sampling: Mapping[str, Any]) -> str:
    """The cheapest step variant that can sample like this."""
    if any(sampling.get(name, usual) != usual for name, usual in NEUTRAL.items()):
        return "full"
    return "greedy" if sampling.get("temperature") == 0 else "sampled"
