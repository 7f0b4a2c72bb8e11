"""A request as it enters the engine core (`WireRequest`), and while it is answered (`Request`).

Three counters describe a running request: tokens known, tokens computed (in the cache), and plans
in flight (that sample for it and are not back). The rest is derived or saves looking up.
"""

from __future__ import annotations

from array import array
from enum import Enum, auto
from typing import Any, NamedTuple

import msgspec

from jengine.media_spans import MediaSpan
from jengine.outputs import NO_SUCH_TOKEN, NOT_FINITE, POOLED, REFUSED
from jengine.plan import RowSampling
from jengine.repetition_detection import RepetitionDetectionParams


class WireRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt, tokenized and checked, as the engine core takes it. Integers and bytes only."""

    request_id: str
    prompt_token_ids: list[int]
    sampling: RowSampling
    max_tokens: int
    stop_token_ids: list[int] = []
    eos_token_ids: list[int] = []
    repetition: RepetitionDetectionParams | None = None
    priority: int = 0
    arrival: float = 0.0
    drawn_seed: bool = False  # the seed is not the user's: the engine drew it
    cache_salt: str | None = None
    skip_reading_prefix_cache: bool = False
    embeds: bytes | None = None  # f32[prompt, hidden]: the prompt's tokens only stand for these
    taps: int = 0  # number of a set of taps that the runner knows; 0: none
    replica: int | None = None  # the data-parallel replica that is to run it; None: any
    adapter: str = ""  # digest of the LoRA adapter's content; "": none
    adapter_name: str = ""  # what its user calls it, for events of blocks
    adapter_number: int = 0  # likewise
    kv_transfer: dict[str, Any] | None = None  # what other engines say of its blocks, and may ask
    routed_experts_start: int = 0  # experts of tokens before this position are not wanted
    media: list[MediaSpan] = []  # images and videos in the prompt, in their order
    # Whether others go on from its last tokens, as it does from theirs: `kvcache.partial_blocks`.
    forks: bool = False


class ReadPrompt(NamedTuple):
    """A prompt's tokens and hashes, prepared on the input thread so that steps do not wait for long
    ones."""

    tokens: array[int]  # i32
    weights_version: int
    joined_hashes: bytes = b""  # of its first blocks, for these weights


class Status(Enum):
    """Lifecycle state. Everything after PREEMPTED is finished."""

    WAITING = auto()
    LOADING = auto()  # it waits for blocks from outside of the device
    RUNNING = auto()
    PREEMPTED = auto()
    FINISHED = auto()


# Looking a member up in its class takes longer than all else that a step does for a request.
WAITING, LOADING, RUNNING, PREEMPTED, FINISHED = Status


class Request:
    """A request inside the engine core. Only the scheduler and the cache coordinator change it."""

    __slots__ = (
        "adapter_slot",
        "admission_order",
        "block_hashes",
        "cap",
        "capacity",
        "ending_ids",
        "first_token_at",
        "joined_hashes",
        "known_at_admission",
        "last_step",
        "num_cached_tokens",
        "num_computed",
        "num_in_flight",
        "num_external_tokens",
        "num_preemptions",
        "num_processed",
        "prompt_length",
        "publish_at",
        "queued_at",
        "reads_each_token",
        "records",
        "request_id",
        "row",
        "sampler_row",
        "scheduled_at",
        "sent",
        "status",
        "token_ids",
        "weights_version",
        "wire",
    )  # fmt: skip

    def __init__(
        self,
        wire: WireRequest,
        max_model_len: int,
        admission_order: int,
        prompt: ReadPrompt | None = None,
    ) -> None:
        prompt = prompt or ReadPrompt(array("i", wire.prompt_token_ids), 0)
        # Its tokens are below, in a quarter of the memory; embeddings are divided by their number.
        is_text = wire.embeds is None
        self.wire = msgspec.structs.replace(wire, prompt_token_ids=[]) if is_text else wire
        self.request_id = wire.request_id
        self.status = WAITING
        self.row = -1
        self.sampler_row = 0  # 1 + its row in the sampler's pool, while it runs and needs one
        self.adapter_slot = 0  # where the step has its adapter, while it runs and needs one
        self.token_ids = prompt.tokens
        self.prompt_length = len(wire.prompt_token_ids)
        self.num_computed = 0
        self.num_in_flight = 0
        # No token may be known beyond this length.
        self.cap = min(max_model_len, self.prompt_length + wire.max_tokens)
        self.admission_order = admission_order
        self.block_hashes: list[bytes] = []
        self.joined_hashes = prompt.joined_hashes  # the first of them, until they are needed
        self.records: Any = None  # what steps say of its tokens: see kvcache.token_records
        self.num_preemptions = 0
        self.num_cached_tokens = -1
        self.num_external_tokens = -1  # loaded from outside of the device; -1: not looked up there
        self.weights_version = prompt.weights_version
        # Computed tokens whose step has been committed: what no step in flight still has to do.
        self.num_processed = 0
        # Tokens known at admission. Below it the row runs tokens from the host, then its own.
        self.known_at_admission = 0
        self.sent = 0  # tokens that plans have brought: below it the device knows the row's text
        self.last_step = -1  # number of the last plan it was in
        self.capacity = 0  # tokens that its blocks can take
        self.publish_at = 0  # tokens at which its next block is full and may be found by others
        # When it arrived, got its row and got its first token: see scheduler.recorder. -1: not yet.
        self.queued_at = self.scheduled_at = self.first_token_at = -1.0
        # Whether the host must have read its last token before the next one may be sampled.
        self.reads_each_token = wire.sampling.is_masked
        # Sampled tokens that end it.
        self.ending_ids = frozenset(
            [NOT_FINITE, NO_SUCH_TOKEN, REFUSED, POOLED, *wire.eos_token_ids, *wire.stop_token_ids]
        )

    @property
    def num_known(self) -> int:
        """Prompt and returned output tokens."""
        return len(self.token_ids)

    @property
    def urgency(self) -> tuple[int, float, int]:
        """Sort key under the priority policy: smaller runs first."""
        return (self.wire.priority, self.wire.arrival, self.admission_order)
