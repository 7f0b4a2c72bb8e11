"""vLLM's sampling parameters that are not fields here: what they need, or what to use instead.

In: an unknown keyword of a parameter class. Out: nothing if its value is neutral, else an error
with advice.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, TypeVar

from jengine.errors import UnsupportedFeature, unknown_argument

BEAMS = "use LLM.beam_search(prompts, BeamSearchParams(beam_width=..., max_tokens=...))"

# vLLM name -> the missing feature, and neutral values.
LATER_FEATURES: dict[str, tuple[str, tuple[Any, ...]]] = {
    "prompt_logprob_token_ids": ("prompt log-probabilities of chosen token ids", (None,)),
    "prompt_logprob_start": ("prompt log-probabilities of chosen token ids", (None,)),
    "trace_decode_token_ids": ("forced decoding", (None,)),
    "watermarking": ("watermarks", (None, False)),
}
# vLLM name -> what to do instead, and neutral values; will not be supported.
INSTEAD: dict[str, tuple[str, tuple[Any, ...]]] = {
    "guided_decoding": (
        "give structured_outputs=StructuredOutputsParams(...), which has the same fields",
        (None,),
    ),
    "best_of": ("ask for n answers and choose the best", (None, 1)),
    "truncate_prompt_tokens": (
        "give tokenization_kwargs={{'truncate_prompt_tokens': {value!r}}} to generate",
        (None,),
    ),
    "use_beam_search": (BEAMS, (None, False)),
    "length_penalty": (BEAMS, (None, 1.0)),
    "early_stopping": ("a beam search runs until no beam is left, as vLLM's", (None, False)),
    "skip_clone": ("parameters are always copied", (None, False, True)),
}
T = TypeVar("T")


def refuses_unknown_names(cls: type[T]) -> type[T]:
    """Class decorator for dataclasses: unknown keywords raise an error with the nearest known
    name."""
    original = cls.__init__
    known = tuple(item.name for item in fields(cls))  # type: ignore[arg-type]

    @functools.wraps(original)
    def checked(self: Any, *args: Any, **given: Any) -> None:
        for name in given.keys() - known:
            refuse_use(cls.__name__, name, given.pop(name), known)
        original(self, *args, **given)

    cls.__init__ = checked  # type: ignore[method-assign]
    return cls


def refuse_use(owner: str, name: str, value: Any, known: Sequence[str]) -> None:
    """Raise for an unknown keyword, unless vLLM has it and its value is neutral."""
    if name not in LATER_FEATURES and name not in INSTEAD:
        raise unknown_argument(owner, name, known)
    reason, unused = LATER_FEATURES.get(name) or INSTEAD[name]
    if any(value is item or value == item for item in unused):
        return
    if name in LATER_FEATURES:
        raise UnsupportedFeature(
            f"{owner}({name}=...): {reason} is not built yet; leave {name} out."
        )
    raise UnsupportedFeature(
        f"{owner}({name}={value!r}): {reason.format(value=value)}; leave {name} out."
    )
