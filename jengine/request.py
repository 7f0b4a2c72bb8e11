"""A request as sent to the engine core (`WireRequest`), and in the core (`Request`).

Three counters describe a running request: tokens known, tokens computed (in the KV cache), and
plans in flight that sample for it. The other fields are derived, or caches.
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
    """One prompt, tokenized and validated, as sent to the engine core. Plain data only."""

    request_id: str
    prompt_token_ids: list[int]
    sampling: RowSampling
    max_tokens: int
    stop_token_ids: list[int] = []
    eos_token_ids: list[int] = []
    repetition: RepetitionDetectionParams | None = None
    priority: int = 0
    arrival: float = 0.0
    drawn_seed: bool = False  # drawn by the engine, not set by the user
    cache_salt: str | None = None
    skip_reading_prefix_cache: bool = False
    embeds: bytes | None = None  # f32[prompt, hidden]: embeddings in place of the prompt's tokens
    taps: int = 0  # id of a set of taps known to the runner; 0: none
    replica: int | None = None  # data-parallel replica to run on; None: any
    adapter: str = ""  # digest of the LoRA adapter's content; "": none
    adapter_name: str = ""  # its name, for KV events
    adapter_number: int = 0  # its number, for KV events
    kv_transfer: dict[str, Any] | None = None  # `kv_transfer_params` of the request
    routed_experts_start: int = 0  # first token whose routed experts are returned
    media: list[MediaSpan] = []  # images and videos in the prompt, in their order
    # Beam search: its partial last block is shared, see `kvcache.partial_blocks`.
    forks: bool = False


class ReadPrompt(NamedTuple):
    """A prompt's tokens and hashes, prepared on the input thread so that steps do not wait for long
    ones."""

    tokens: array[int]  # i32
    weights_version: int
    joined_hashes: bytes = b""  # block hashes of its prefix, concatenated, for this weights version


class Status(Enum):
    """Lifecycle state. Everything after PREEMPTED is finished."""

    WAITING = auto()
    LOADING = auto()  # waiting for KV blocks to be loaded
    RUNNING = auto()
    PREEMPTED = auto()
    FINISHED = auto()


# Module constants: looking a member up in its class takes longer than all else that a step does for
# a request.
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
        # Tokens are kept below, in a quarter of the memory; with embeddings the ids give their
        # number.
        is_text = wire.embeds is None
        self.wire = msgspec.structs.replace(wire, prompt_token_ids=[]) if is_text else wire
        self.request_id = wire.request_id
        self.status = WAITING
        self.row = -1
        self.sampler_row = 0  # 1 + its index in the sampler's pool, while it runs and needs one
        self.adapter_slot = 0  # while it runs and needs one; 0: none
        self.token_ids = prompt.tokens
        self.prompt_length = len(wire.prompt_token_ids)
        self.num_computed = 0
        self.num_in_flight = 0
        # Maximum number of known tokens.
        self.cap = min(max_model_len, self.prompt_length + wire.max_tokens)
        self.admission_order = admission_order
        self.block_hashes: list[bytes] = []
        self.joined_hashes = prompt.joined_hashes  # block hashes of the prefix, until unpacked
        self.records: Any = None  # per-token results, see kvcache.token_records
        self.num_preemptions = 0
        self.num_cached_tokens = -1
        self.num_external_tokens = -1  # in host memory or a connector; -1: not looked up
        self.weights_version = prompt.weights_version
        # Computed tokens whose steps have been committed.
        self.num_processed = 0
        # Tokens known at admission, which the row runs from the host; later ones it has sampled
        # itself.
        self.known_at_admission = 0
        self.sent = 0  # tokens known to the device through plans
        self.last_step = -1  # number of its last plan
        self.capacity = 0  # capacity of its blocks, in tokens
        self.publish_at = 0  # number of tokens at which its next full block is published
        # Times of arrival, first scheduling and first token (see scheduler.recorder); -1: not yet.
        self.queued_at = self.scheduled_at = self.first_token_at = -1.0
        # Whether a step must be read before the next token can be sampled.
        self.reads_each_token = wire.sampling.is_masked
        # Tokens that end it when sampled.
        self.ending_ids = frozenset(
            [NOT_FINITE, NO_SUCH_TOKEN, REFUSED, POOLED, *wire.eos_token_ids, *wire.stop_token_ids]
        )

    @property
    def num_known(self) -> int:
        """Prompt and output tokens so far."""
        return len(self.token_ids)

    @property
    def urgency(self) -> tuple[int, float, int]:
        """Sort key under the priority policy: smaller runs first."""
        return (self.wire.priority, self.wire.arrival, self.admission_order)
