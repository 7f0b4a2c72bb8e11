"""The plan: one step's decision, complete and serialisable. The door between host and device.

Holds plain data only, and suffices for any host to run the step: equal plans on equal weights give
equal tokens. Also what is broadcast to other hosts.
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

# Values of `RowSampling.pools`: sample a token, pool one vector, or one per prompt token.
POOLED_AS = ("", "vectors", "tokens")


class RowSampling(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling settings of a row, resolved to numbers and token ids."""

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
    # Report the log-probabilities of these ids instead of the top ones; `logprobs` is then their
    # number.
    logprob_ids: list[int] = []
    prompt_logprobs: int | None = None
    grammar: GrammarSpec | None = None  # constrains the answer
    thinking: ThinkingBudget | None = None  # limits its reasoning
    processors: int = 0  # id of a set of logits processors; 0: none
    extra_args: dict[str, Any] | None = None  # for host logits processors
    # Index into `POOLED_AS`; 0: sample a token.
    pools: int = 0

    @property
    def has_sampler_state(self) -> bool:
        """Whether the row needs a slot of sampler state on the device."""
        return self.adjusts_logits or bool(self.logprob_ids)

    @property
    def adjusts_logits(self) -> bool:
        """Whether penalties, biases or masks are in use."""
        return self.is_masked or self.adjusts_beyond_mask

    @property
    def is_masked(self) -> bool:
        """Whether the host sends token masks (grammar or thinking budget)."""
        return self.grammar is not None or self.thinking is not None

    @property
    def adjusts_beyond_mask(self) -> bool:
        """Whether anything but a mask from the host changes the logits."""
        return self.counts_tokens or bool(self.min_tokens > 0 and self.stop_ids)

    @property
    def counts_tokens(self) -> bool:
        """Whether penalties, biases, allowed ids or bad words are in use, for which the device
        counts tokens or changes their logits."""
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
    """A row that starts, or restarts after preemption: everything known of its request."""

    row: int
    tokens: bytes  # i32: prompt and outputs so far
    prompt_length: int
    sampling: RowSampling
    taps: int = 0  # id of the set of taps; 0: none
    # 1 + index in the pool of sampler state (penalties, masks, ids to score); 0: none.
    sampler_row: int = 0
    # Adapter slot, from 1, and the digest of its adapter; 0: no adapter.
    adapter_slot: int = 0
    adapter: str = ""
    embeds: bytes | None = None  # f32[prompt_length, hidden]: in place of the tokens' embeddings
    media: list[MediaSpan] = []  # images and videos in its prompt, without their values

    @property
    def token_ids(self) -> list[int]:
        """The tokens as integers."""
        return np.frombuffer(self.tokens, np.int32).tolist()


class NewBlocks(msgspec.Struct, frozen=True, array_like=True):
    """Blocks a row gains in one cache group, written to its block table from index `first`.

    Block id 0 is the null block, outside the row's window and never read.
    """

    row: int
    group: int
    first: int
    blocks: list[int]


class KnownTokens(msgspec.Struct, frozen=True, array_like=True):
    """Tokens appended to a running row by the host (forced by a grammar), unknown to the device."""

    row: int
    start: int  # position of the first
    token_ids: list[int]


class Wanted(IntEnum):
    """Result wanted of an entry: nothing, or the output after its last token."""

    NOTHING = 0  # a prefill chunk that is not the last
    TOKENS = 1


# Module constants: member lookup on an enum class is slow.
NOTHING, TOKENS = Wanted
# Comparing an array with an enum member is slow, too.
TOKENS_NUMBER = int(TOKENS)


class Entry(NamedTuple):
    """A row's part of a step: `length` tokens from position `start`."""

    row: int
    start: int
    length: int
    wanted: Wanted = TOKENS


ENTRY_BYTES = len(Entry._fields) * np.dtype(np.int32).itemsize


class Entries(msgspec.Struct, frozen=True, array_like=True):
    """The entries of a plan, stored by column, so that a step creates no object per row."""

    table: bytes  # i32[4, entries]: the fields of Entry

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Entries:
        return cls(np.array([*entries], np.int32).reshape(-1, len(Entry._fields)).T.tobytes())

    @classmethod
    def of_columns(
        cls,
        rows: Sequence[int],
        starts: Sequence[int],
        lengths: Sequence[int],
        wanted: Sequence[Wanted],
    ) -> Entries:
        columns = (rows, starts, lengths, wanted)
        assert len(set(map(len, columns))) == 1, "columns of one length"
        # numpy takes several times as long for such short lists.
        return cls(array("i", chain(*columns)).tobytes())

    @property
    def columns(self) -> np.ndarray:
        """i32[4, entries], read-only: the fields of Entry."""
        return np.frombuffer(self.table, np.int32).reshape(len(Entry._fields), -1)

    @property
    def rows(self) -> np.ndarray:
        """i32[entries]."""
        return self.columns[0]

    @property
    def starts(self) -> np.ndarray:
        """i32[entries]: first position of each entry."""
        return self.columns[1]

    @property
    def lengths(self) -> np.ndarray:
        """i32[entries]: number of tokens of each entry."""
        return self.columns[2]

    @property
    def wants_tokens(self) -> np.ndarray:
        """bool[entries]: whether to sample."""
        return self.columns[3] == TOKENS_NUMBER

    def __len__(self) -> int:
        return len(self.table) // ENTRY_BYTES

    def __iter__(self) -> Iterator[Entry]:
        for row, start, length, wanted in self.columns.T.tolist():
            yield Entry(row, start, length, Wanted(wanted))


class TokenMasks(msgspec.Struct, frozen=True, array_like=True):
    """Allowed next tokens of rows with a grammar or a thinking budget, also after each of their
    drafts. Valid until replaced."""

    sampler_rows: bytes  # i32[masks]: see `NewRow.sampler_row`
    drafts_before: bytes  # i32[masks]: number of the row's drafts before each
    words: bytes  # i32[masks, vocabulary / 32]: one bit per token, lowest first; 1: allowed

    @property
    def rows(self) -> np.ndarray:
        """i32[masks], from 0: indices in the pool of sampler state."""
        return np.frombuffer(self.sampler_rows, np.int32) - 1

    @property
    def after(self) -> np.ndarray:
        """i32[masks]: number of the row's drafts before each."""
        return np.frombuffer(self.drafts_before, np.int32)

    @property
    def bits(self) -> np.ndarray:
        """i32[masks, words], read-only."""
        return np.frombuffer(self.words, np.int32).reshape(len(self.sampler_rows) // 4, -1)


NO_ENTRIES = Entries(b"")
NO_DRAFTER = -1  # see `Plan.next_drafts`


class Drafts(msgspec.Struct, frozen=True, array_like=True):
    """Draft tokens of a row, by position. Some drafts in flight may not be verified yet, so the
    step takes those that follow the row's true last token."""

    row: int
    first: int  # position of the first: the earliest at which the row can continue
    # If too few follow the true last token, the row runs fewer drafts. Empty: drafts made on the
    # device by the last step.
    token_ids: list[int]


class BlockCopies(msgspec.Struct, frozen=True, array_like=True):
    """Copies between blocks of one cache group and host-memory slots."""

    group: int
    blocks: list[int]
    slots: list[int]
    # Of saves: content keys, for connectors.
    keys: list[bytes] = []


class Forks(msgspec.Struct, frozen=True, array_like=True):
    """Copy-on-write of one cache group's units (blocks or states), before anything else of the plan
    writes: a forked request continues another one's last block."""

    group: int
    sources: list[int]
    targets: list[int]


class Fetch(msgspec.Struct, frozen=True, array_like=True):
    """A block that a connector fetches into a host-memory slot."""

    number: int  # reported in `StepOutput.transfers_done`
    group: int
    slot: int
    key: bytes
    source: str = ""  # the connector's source; "": not request-specific


class Transfers(msgspec.Struct, frozen=True, array_like=True):
    """Block copies of a plan: loads run before its step, saves after it.

    Fetches are only started. A plan without entries runs no step, only these.
    """

    loads: list[BlockCopies] = []
    saves: list[BlockCopies] = []
    fetches: list[Fetch] = []
    reset: bool = False  # first: empty all slots and forget fetches in progress


class Plan(msgspec.Struct, frozen=True, array_like=True):
    """One step.

    The first `num_decodes` entries are decodes: each runs the row's last token, sampled on the
    device in an earlier step, and then drafts if its `length` exceeds 1. With drafts in flight,
    `start` assumes that all are accepted; the device knows the true position. The other entries are
    prefill chunks: they run tokens known to the host (prompts, and recomputed outputs).

    In a multi-step decode every entry is a decode that runs `repeats` times, each time on the token
    sampled before; its `length` is `repeats`. It may end early, once every row has sampled one of
    its stop ids.
    """

    step: int
    entries: Entries
    num_decodes: int
    new_rows: list[NewRow] = []
    new_blocks: list[NewBlocks] = []
    released: list[int] = []
    repeats: int = 1
    masks: TokenMasks | None = None  # new masks only
    known: list[KnownTokens] = []  # run by prefill chunks of rows that are not new
    drafts: list[Drafts] = []
    # Drafts to make on the device at the end of the step, per sampled row. NO_DRAFTER: do not run
    # the draft model at all, not even on the step's tokens.
    next_drafts: int = 0
    transfers: Transfers | None = None
    encode: list[MediaSpan] = []  # images to encode before the step
    forks: list[Forks] = []

    @property
    def runs_step(self) -> bool:
        """False for a plan with only transfers."""
        return self.transfers is None or len(self.entries) > 0

    @property
    def num_decode_rows(self) -> int:
        """Tokens that the decodes run at a time, drafts included."""
        if not self.drafts:
            return self.num_decodes
        return int(self.entries.lengths[: self.num_decodes].sum())

    @property
    def num_tokens(self) -> int:
        return int(self.entries.lengths.sum())

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of prefill chunks."""
        return int(self.entries.lengths[self.num_decodes :].sum())
