"""The plan: one step's decision, complete and serialisable. The door between host and device.

It holds integers, floats and bytes only and is enough for any host to run the step: the same plans
on the same weights give the same tokens. It is also what is broadcast to other hosts.
"""

from __future__ import annotations

import msgspec


class RowSampling(msgspec.Struct, frozen=True, kw_only=True):
    """How a row samples, with everything resolved to numbers: no strings, no None for a number."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0  # unsigned 64 bits
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 0
    # End-of-sequence and stop ids, which end the row; masked until min_tokens is reached.
    stop_ids: list[int] = []
    logit_bias: dict[int, float] = {}
    allowed_ids: list[int] | None = None
    bad_words: list[list[int]] = []
    logprobs: int | None = None  # None: not wanted; 0: the sampled token only; -1: all
    prompt_logprobs: int | None = None

    @property
    def adjusts_logits(self) -> bool:
        """Whether penalties, biases or masks are in use, which need per-row device state."""
        return bool(
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or (self.min_tokens > 0 and self.stop_ids)
            or self.logit_bias
            or self.allowed_ids is not None
            or self.bad_words
        )


class NewRow(msgspec.Struct, frozen=True, array_like=True):
    """A row that starts (or starts again after preemption): everything known of its request."""

    row: int
    token_ids: list[int]  # prompt and outputs returned so far
    prompt_length: int
    sampling: RowSampling
    taps: int = 0  # which set of taps the row uses; 0: none


class NewBlocks(msgspec.Struct, frozen=True, array_like=True):
    """Blocks a row gains in one cache group, appended at `first` in its block table.

    A block id of 0 is the null block: the row will never read there (outside its window).
    """

    row: int
    group: int
    first: int
    blocks: list[int]


class Plan(msgspec.Struct, frozen=True, array_like=True):
    """One step. The lists `rows`, `starts`, `lengths`, `samples` run side by side.

    The first `num_decodes` entries run one token that the device itself sampled in an earlier
    step; the others run tokens that the host knows (prompt chunks, and recomputed outputs).
    A row samples where the tokens scheduled reach the end of what is known.

    A burst has decodes only and runs them `repeats` times, each time a token further; `lengths` say
    so too. It may end early, when every row has sampled one of its ending ids.
    """

    step: int
    rows: list[int]
    starts: list[int]
    lengths: list[int]
    samples: list[bool]
    num_decodes: int
    new_rows: list[NewRow] = []
    new_blocks: list[NewBlocks] = []
    released: list[int] = []
    repeats: int = 1

    @property
    def num_tokens(self) -> int:
        """Tokens this step runs."""
        return sum(self.lengths)
