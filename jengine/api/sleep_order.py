"""Validates `sleep` and `wake_up` calls. No jax.

In: levels and tags with vLLM's names. Out: a SleepOrder, or an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

from jengine.api.async_requests import PauseMode
from jengine.engine.questions import Pause, Sleep, WakeUp
from jengine.errors import RequestError
from jengine.runner.report_types import SLEEPERS
from jengine.sampling_checks import integer

# Whether new requests are queued or refused while the engine sleeps.
NewRequests = Literal["keep", "refuse"]
SCHEDULING = "scheduling"  # tag of stepping, which resumes once everything is awake
ASLEEP = "the engine sleeps. Send the request again once it was woken up."


class SleepOrder(NamedTuple):
    """A validated call of `sleep`."""

    question: Sleep | Pause  # level 0 only pauses
    mode: PauseMode
    refusal: str | None  # error of new requests; None: they are queued

    @classmethod
    def checked(
        cls,
        enabled: bool,
        level: int,
        mode: PauseMode,
        tags: Sequence[str] | None,
        new_requests: NewRequests,
    ) -> SleepOrder:
        """Validate the arguments of `sleep`. Raises RequestError."""
        level = integer("level", level, 0, 2)
        check_one_of("mode", mode, get_args(PauseMode))
        check_one_of("new_requests", new_requests, get_args(NewRequests))
        if level and not enabled:
            raise RequestError(
                f"sleep(level={level}): this engine was created without enable_sleep_mode=True."
            )
        if not level and tags is not None:
            raise RequestError("sleep(level=0) only pauses; leave tags out, or use level 1 or 2.")
        question = Sleep(level, checked_tags(tags, SLEEPERS)) if level else Pause()
        return cls(question, mode, ASLEEP if new_requests == "refuse" else None)


def waking(tags: Sequence[str] | None) -> WakeUp:
    """The message to the core for `wake_up(tags)`; None wakes everything."""
    chosen = checked_tags(tags, (*SLEEPERS, SCHEDULING))
    return WakeUp([tag for tag in chosen if tag != SCHEDULING])


def check_one_of(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise RequestError(f"{name}={value!r:.40}: expected one of {', '.join(choices)}.")


def checked_tags(tags: Sequence[str] | None, known: Sequence[str]) -> list[str]:
    """Validate tags; None stands for all known ones."""
    if tags is None:
        return list(known)
    if isinstance(tags, str) or not all(tag in known for tag in tags):
        raise RequestError(f"tags={tags!r:.80}: expected a list of {', '.join(known)}.")
    return list(tags)
