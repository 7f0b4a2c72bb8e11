"""The plan: one step's decision, complete and serialisable. The door between host and device.

It holds integers, floats and bytes only and is enough for any host to run the step: the same plans
on the same weights give the same tokens. It is also what is broadcast to other hosts.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from itertools import chain
from typing import Any, NamedTuple

import msgspec
import numpy as np

from jengine.media_spans import MediaSpan
from jengine.structured_outputs import GrammarSpec
from jengine.thinking_budget import ThinkingBudget

# What a row may want in place of a token: one vector, or one per token of its prompt.
POOLED_AS = ("", "vectors", "tokens")


class RowSampling(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling settings of a row, resolved to numbers: no strings, no None."""

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
    # Ids whose log-probabilities are wanted in place of the likeliest tokens'; `logprobs` is then
    # their number.
    logprob_ids: list[int] = []
    prompt_logprobs: int | None = None
    grammar: GrammarSpec | None = None  # what the answer must follow
    thinking: ThinkingBudget | None = None  # where its reasoning must end
    processors: int = 0  # number of a set of logits processors; 0: none
    extra_args: dict[str, Any] | None = None  # for processors that run on the host
    # What is wanted in place of a sampled token: see `POOLED_AS`. 0: nothing.
    pools: int = 0

    @property
    def has_sampler_state(self) -> bool:
        """Whether the device keeps something for the row besides its settings."""
        return self.adjusts_logits or bool(self.logprob_ids)

    @property
    def adjusts_logits(self) -> bool:
        """Whether penalties, biases or masks are in use."""
        return self.is_masked or self.adjusts_beyond_mask

    @property
    def is_masked(self) -> bool:
        """Whether masks from the host say which tokens may follow."""
        return self.grammar is not None or self.thinking is not None

    @property
    def adjusts_beyond_mask(self) -> bool:
        """Whether anything but a mask from the host changes the logits."""
        return self.counts_tokens or bool(self.min_tokens > 0 and self.stop_ids)

    @property
    def counts_tokens(self) -> bool:
        """Whether the device must know the answer's tokens, or changes the logits by tokens."""
        return bool(
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or self.logit_bias
            or self.allowed_ids is not None
            or self.bad_words
            or self.processors
        )


def packed_tokens(token_ids: Iterable[int]) -> bytes:
    """Encode token ids as NewRow holds them."""
    return array("i", token_ids).tobytes()


class NewRow(msgspec.Struct, frozen=True, array_like=True):
    """A row that starts (or starts again after preemption): everything known of its request."""

    row: int
    tokens: bytes  # i32: prompt and outputs returned so far
    prompt_length: int
    sampling: RowSampling
    taps: int = 0  # which set of taps the row uses; 0: none
    # Where the sampler keeps what adjusts the row's logits, and ids of its own to score: 0:
    # there is nothing; otherwise 1 + its row in the pool of such state.
    sampler_row: int = 0
    # Which of the step's adapter slots the row uses, from 1 on, and the digest of the adapter that
    # must be there; 0: no adapter.
    adapter_slot: int = 0
    adapter: str = ""
    embeds: bytes | None = None  # f32[prompt_length, hidden]: the prompt's tokens stand for these
    media: list[MediaSpan] = []  # images and videos in its prompt, without their values

    @property
    def token_ids(self) -> list[int]:
        """The tokens as integers."""
        return np.frombuffer(self.tokens, np.int32).tolist()


class NewBlocks(msgspec.Struct, frozen=True, array_like=True):
    """Blocks a row gains in one cache group, appended at `first` in its block table.

    A block id of 0 is the null block: the row will never read there (outside its window).
    """

    row: int
    group: int
    first: int
    blocks: list[int]


class KnownTokens(msgspec.Struct, frozen=True, array_like=True):
    """Tokens appended to a running row by the host (forced by a grammar), which the device has not
    sampled."""

    row: int
    start: int  # position of the first
    token_ids: list[int]


class Wanted(IntEnum):
    """Result wanted of an entry: nothing, or the row's output after its last token."""

    NOTHING = 0  # a prefill chunk that does not reach the end of what is known
    TOKENS = 1


# Looking a member up in its class is slow.
NOTHING, TOKENS = Wanted
# And numpy looks for attributes of a member that an array is compared with.
TOKENS_NUMBER = int(TOKENS)


class Entry(NamedTuple):
    """A row's part of a step: `length` tokens from position `start`."""

    row: int
    start: int
    length: int
    wanted: Wanted = TOKENS


ENTRY_BYTES = len(Entry._fields) * np.dtype(np.int32).itemsize


class Entries(msgspec.Struct, frozen=True, array_like=True):
    """The entries of a plan, stored by column: a step makes no object per row."""

    table: bytes  # i32[4, entries]: the fields of Entry

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Entries:
        """These entries."""
        return cls(np.array([*entries], np.int32).reshape(-1, len(Entry._fields)).T.tobytes())

    @classmethod
    def of_columns(
        cls,
        rows: Sequence[int],
        starts: Sequence[int],
        lengths: Sequence[int],
        wanted: Sequence[Wanted],
    ) -> Entries:
        """As many entries as each column has items."""
        columns = (rows, starts, lengths, wanted)
        assert len(set(map(len, columns))) == 1, "columns of one length"
        # numpy takes several times as long for lists of so few numbers.
        return cls(array("i", chain(*columns)).tobytes())

    @property
    def columns(self) -> np.ndarray:
        """i32[4, entries], read-only: the fields of Entry."""
        return np.frombuffer(self.table, np.int32).reshape(len(Entry._fields), -1)

    @property
    def rows(self) -> np.ndarray:
        """i32[entries]: the row of each entry."""
        return self.columns[0]

    @property
    def starts(self) -> np.ndarray:
        """i32[entries]: the first position that each entry runs."""
        return self.columns[1]

    @property
    def lengths(self) -> np.ndarray:
        """i32[entries]: the number of tokens of each entry."""
        return self.columns[2]

    @property
    def wants_tokens(self) -> np.ndarray:
        """bool[entries]: whether tokens are to be sampled."""
        return self.columns[3] == TOKENS_NUMBER

    def __len__(self) -> int:
        return len(self.table) // ENTRY_BYTES

    def __iter__(self) -> Iterator[Entry]:
        for row, start, length, wanted in self.columns.T.tolist():
            yield Entry(row, start, length, Wanted(wanted))


class TokenMasks(msgspec.Struct, frozen=True, array_like=True):
    """Which tokens rows with a grammar or a budget of reasoning may sample next, and after each of
    their drafts. They hold until they are replaced."""

    sampler_rows: bytes  # i32[masks]: where each is kept, as `NewRow.sampler_row`
    drafts_before: bytes  # i32[masks]: after how many of the row's drafts each holds
    words: bytes  # i32[masks, vocabulary / 32]: a bit per token, the lowest first; 1: allowed

    @property
    def rows(self) -> np.ndarray:
        """i32[masks], from 0: rows of the sampler's pool."""
        return np.frombuffer(self.sampler_rows, np.int32) - 1

    @property
    def after(self) -> np.ndarray:
        """i32[masks]: after how many of its row's drafts each holds."""
        return np.frombuffer(self.drafts_before, np.int32)

    @property
    def bits(self) -> np.ndarray:
        """i32[masks, words], read-only."""
        return np.frombuffer(self.words, np.int32).reshape(len(self.sampler_rows) // 4, -1)


NO_ENTRIES = Entries(b"")
NO_DRAFTER = -1  # in place of a number of drafts


class Drafts(msgspec.Struct, frozen=True, array_like=True):
    """Drafts of a row's next tokens, by position. The host may not know yet how many of the drafts
    in flight were accepted: the step takes those that follow the tokens that the row really has."""

    row: int
    first: int  # the position of the first one: the earliest at which the row can go on
    # Where they end too early, the row gets fewer drafts. Empty: the step before has made them.
    token_ids: list[int]


class BlockCopies(msgspec.Struct, frozen=True, array_like=True):
    """Copies between blocks of one cache group and host-memory slots."""

    group: int
    blocks: list[int]
    slots: list[int]
    # Of saves: names of the contents, for connectors that keep them in places further away.
    keys: list[bytes] = []


class Forks(msgspec.Struct, frozen=True, array_like=True):
    """Copy-on-write of one cache group's units (blocks or states), before anything else of the plan
    writes: a forked request continues another one's last block."""

    group: int
    sources: list[int]
    targets: list[int]


class Fetch(msgspec.Struct, frozen=True, array_like=True):
    """A block that a connector fetches into a host-memory slot."""

    number: int  # by which `StepOutput.transfers_done` reports it
    group: int
    slot: int
    key: bytes
    source: str = ""  # where it is, if the request says so


class Transfers(msgspec.Struct, frozen=True, array_like=True):
    """Block copies of a plan: loads run before its step, saves after it.

    Fetches are only started. A plan without entries runs no step, only these.
    """

    loads: list[BlockCopies] = []
    saves: list[BlockCopies] = []
    fetches: list[Fetch] = []
    reset: bool = False  # first: no slot holds anything, and fetches in progress are forgotten


class Plan(msgspec.Struct, frozen=True, array_like=True):
    """One step.

    The first `num_decodes` entries are decodes: each runs one token that the device itself sampled
    in an earlier step, and drafts after it as far as its `length` is more than 1. Then its `start`
    is the position if all drafts in flight are accepted; the device knows the real one. The others
    are prefill chunks: they run tokens that the host knows (prompts, and recomputed outputs).

    In a multi-step decode every entry is a decode and runs `repeats` times, each time on the token
    sampled the time before; its `length` is `repeats`. It may end early, once every row has sampled
    one of its stop ids.
    """

    step: int
    entries: Entries
    num_decodes: int
    new_rows: list[NewRow] = []
    new_blocks: list[NewBlocks] = []
    released: list[int] = []
    repeats: int = 1
    masks: TokenMasks | None = None  # those that are new
    known: list[KnownTokens] = []  # run by the prefill chunks of rows that are not new
    drafts: list[Drafts] = []
    # Tokens that the step itself drafts, at its end, for each row that it samples; NO_DRAFTER: the
    # model that drafts does not even read the step's tokens.
    next_drafts: int = 0
    transfers: Transfers | None = None
    encode: list[MediaSpan] = []  # images to encode before the step
    forks: list[Forks] = []

    @property
    def runs_step(self) -> bool:
        """Whether it runs a step: one with transfers and without entries runs only these."""
        return self.transfers is None or len(self.entries) > 0

    @property
    def num_decode_rows(self) -> int:
        """Tokens that its decodes run at a time."""
        if not self.drafts:
            return self.num_decodes
        return int(self.entries.lengths[: self.num_decodes].sum())

    @property
    def num_tokens(self) -> int:
        """Tokens that this step runs."""
        return int(self.entries.lengths.sum())

    @property
    def num_prompt_tokens(self) -> int:
        """Number of tokens of prefill chunks in the step."""
        return int(self.entries.lengths[self.num_decodes :].sum())
