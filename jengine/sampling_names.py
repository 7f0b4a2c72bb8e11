"""vLLM's sampling parameters that are no field here: what each needs, or what to use instead.

In: a keyword that a class of parameters does not have. Out: nothing where its value asks for
nothing, else the error that says what to do.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, TypeVar

from jengine.errors import UnsupportedFeature, unknown_argument

BEAMS = "use LLM.beam_search(prompts, BeamSearchParams(beam_width=..., max_tokens=...))"

# Names of vLLM that are no field here -> what they need, and values that ask for nothing.
LATER_FEATURES: dict[str, tuple[str, tuple[Any, ...]]] = {
    "prompt_logprob_token_ids": ("prompt log-probabilities of chosen token ids", (None,)),
    "prompt_logprob_start": ("prompt log-probabilities of chosen token ids", (None,)),
    "trace_decode_token_ids": ("forced decoding", (None,)),
    "watermarking": ("watermarks", (None, False)),
}
# The same for names that will not come: what to do instead.
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
    """Make a dataclass answer an unknown keyword with the nearest known name."""
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
    """Raise for a name that is no field, unless vLLM has it and its value asks for nothing."""
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
