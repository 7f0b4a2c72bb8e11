"""The sampler's section of the step input: one slot per position to sample.

Filled on the host, read on the device. Must not know jax or how rows are scheduled.
"""

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Annotated, Any, NamedTuple, get_type_hints

import numpy as np

from jengine.sampling.row_parameters import seed_words


class RowSetting(NamedTuple):
    """Declares a per-request setting of the sampler."""

    dtype: str
    source: Callable[[Any], Any]  # NewRow to value
    width: tuple[int, ...] = ()  # shape of one value


class SamplingInput(NamedTuple):
    """S slots, R engine rows. Fields annotated with RowSetting are the only list of row settings: a
    new sampling parameter is one more field."""

    rows: Any  # i32[S] engine row, or R for padding
    # i32[S] position in the sequence of the token to be sampled; packed as -1 where only the device
    # knows it
    positions: Any
    # f32[S] 0: greedy, and the filters are off
    temperature: Annotated[Any, RowSetting("float32", attrgetter("sampling.temperature"))]
    # i32[S] 0 or less: off
    top_k: Annotated[Any, RowSetting("int32", attrgetter("sampling.top_k"))]
    # f32[S] 1: off
    top_p: Annotated[Any, RowSetting("float32", attrgetter("sampling.top_p"))]
    # f32[S] 0: off
    min_p: Annotated[Any, RowSetting("float32", attrgetter("sampling.min_p"))]
    # u32[S, 2] the request's 64-bit seed
    seed: Annotated[Any, RowSetting("uint32", lambda new: seed_words(new.sampling.seed), (2,))]
    # i32[S] 0: logits as they are; otherwise 1 + the request's row in RowState
    adjusted: Annotated[Any, RowSetting("int32", attrgetter("sampler_row"))]
    # i32[S] 0: only a token mask changes the logits
    beyond_mask: Annotated[Any, RowSetting("int32", attrgetter("sampling.adjusts_beyond_mask"))]
    # i32[S] number of a set of logits processors; 0: none
    processors: Annotated[Any, RowSetting("int32", attrgetter("sampling.processors"))]
    # f32[S] 1: off
    repetition: Annotated[Any, RowSetting("float32", attrgetter("sampling.repetition_penalty"))]
    # f32[S] 0: off
    presence: Annotated[Any, RowSetting("float32", attrgetter("sampling.presence_penalty"))]
    # f32[S] 0: off
    frequency: Annotated[Any, RowSetting("float32", attrgetter("sampling.frequency_penalty"))]
    # i32[S] position of the first generated token
    prompt_length: Annotated[Any, RowSetting("int32", attrgetter("prompt_length"))]
    # i32[S] stop ids are masked at positions below this one
    min_position: Annotated[
        Any, RowSetting("int32", lambda new: new.prompt_length + new.sampling.min_tokens)
    ]


ROW_SETTINGS: dict[str, RowSetting] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(SamplingInput, include_extras=True).items()
    if hasattr(hint, "__metadata__")
}


def sampling_layout(slots: int, num_rows: int) -> dict[str, tuple[tuple[int, ...], str, int]]:
    """Shape, dtype and padding value of each field."""
    return {
        "rows": ((slots,), "int32", num_rows),
        "positions": ((slots,), "int32", -1),
        **{name: ((slots, *one.width), one.dtype, 0) for name, one in ROW_SETTINGS.items()},
    }


def fill_sampling(
    section: SamplingInput,
    slots: np.ndarray | slice,
    rows: np.ndarray,
    positions: np.ndarray | int,
    settings: Mapping[str, np.ndarray],
) -> None:
    """Fill slots for these rows; `settings` holds each setting by row."""
    section.rows[slots] = rows
    section.positions[slots] = positions
    for name in ROW_SETTINGS:
        getattr(section, name)[slots] = settings[name][rows]
