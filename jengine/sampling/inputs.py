"""The sampler's view of one step: one entry for each position whose next token is wanted.

In: filled by the caller from its packed step input. Out: arrays that every phase reads.
Must not know: how rows are scheduled, which entries are padding (row R marks them).
"""

from typing import NamedTuple

from jax import Array


class SamplingInput(NamedTuple):
    """S positions to sample; R is the number of engine rows."""

    rows: Array  # i32[S] engine row, or R for padding
    positions: Array  # i32[S] where the token to be sampled stands in its sequence
    temperature: Array  # f32[S] below 1e-5: greedy, and the filters are off
    top_k: Array  # i32[S] 0 or less: off
    top_p: Array  # f32[S] 1: off
    min_p: Array  # f32[S] 0: off
    seed: Array  # u32[S, 2] the request's 64-bit seed
    adjusted: Array  # i32[S] 0: logits as they are; otherwise 1 + the request's row in RowState
    repetition: Array  # f32[S] 1: off
    presence: Array  # f32[S] 0: off
    frequency: Array  # f32[S] 0: off
    prompt_length: Array  # i32[S] the first generated token stands at this position
    min_position: Array  # i32[S] stop ids are masked at positions below this one
