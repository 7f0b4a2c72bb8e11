"""Schedule limits, request order, and speculative decoding."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SpeculativeConfig:
    """Speculative decoding settings. Names and defaults are vLLM's; `speculative.config` builds and
    checks them."""

    method: str
    num_speculative_tokens: int  # the most drafts of a row
    # n-gram: sizes of the n-grams to look up.
    prompt_lookup_min: int = 5
    prompt_lookup_max: int = 5
    # Suffix decoding: the longest match, requests whose answers are kept, drafts per token of the
    # match, and the least estimated probability of a draft.
    suffix_decoding_max_tree_depth: int = 24
    suffix_decoding_max_cached_requests: int = 10000
    suffix_decoding_max_spec_factor: float = 1.0
    suffix_decoding_min_token_prob: float = 0.1
    # Whether a row's drafts become fewer, or none, while few of them are accepted. Not in vLLM.
    adaptive: bool = True
    model: str | None = None  # the folder of the model that drafts; None: none, or the model's own
    # Whether it drafts all tokens in one pass, which it must have been trained for.
    parallel_drafting: bool = False
    # What one draft of it costs, as a share of a step that gives one token.
    draft_cost: float = 0.0

    @property
    def on_device(self) -> bool:
        """Whether drafts are made on the device, inside steps."""
        return self.method in MODEL_METHODS

    @property
    def has_cache(self) -> bool:
        """Whether the draft model has a KV cache."""
        return self.method in CACHING_METHODS

    @property
    def lookahead(self) -> int:
        """Positions beyond a row's last token where a step writes draft KV."""
        return self.num_speculative_tokens if self.has_cache else 0


# Limits of the sampler's per-row arrays, which limit requests.
MAX_BAD_WORDS = 128
MAX_BAD_WORD_TOKENS = 1024
MAX_LOGPROB_IDS = 128  # ids of its own that a row may have scored
# Methods whose drafts come from a model on the device, and those of them with a KV cache.
MODEL_METHODS = ("draft_model", "eagle", "eagle3", "medusa", "mtp")
CACHING_METHODS = ("draft_model", "eagle", "eagle3", "mtp")


# With drafts, a step has room for so many decode rows even if fewer requests run at once. Beyond
# that a token more costs a step nearly as much as the first one, and drafts gain little.
DRAFTED_ROWS = 128


def decode_rows(rows: int, most_drafts: int) -> int:
    """Maximum tokens that decodes run in a step, drafts included."""
    return max(rows, min(rows * (1 + most_drafts), DRAFTED_ROWS))


# Tokens that a CPU computes in the time in which a step reads all weights, about.
FREE_TOKENS = 10


@dataclass(frozen=True)
class ScheduleConfig:
    """The scheduler's limits per step and its request order."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    policy: str = "fcfs"  # see `scheduler.orders`
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    # A prefill chunk fills whole tiles of this many tokens in the step; the budget counts tiles.
    prefill_tile: int = 32
    # Tiles of a chunk that attention takes as one.
    joined_tiles: int = 1
    # Decodes whose first so many blocks are alike run side by side, since attention reads those
    # once for neighbours. 0: it does not, and decodes are sorted by length.
    shared_blocks: int = 0
    decode_sizes: tuple[int, ...] = ()  # compiled numbers of decode tokens
    # Compiled numbers of prefill tokens: the last prompt of a step may be cut there.
    prefill_sizes: tuple[int, ...] = ()
    full_step: int = 0  # tokens below which a step takes no less time
    # Most decode steps of one plan, while no request waits.
    num_scheduler_steps: int = 1
    # Requests with penalties, biases or masks that may run at once: the sampler's state for each
    # is as large as the vocabulary. None: as many as run.
    max_adjusted_seqs: int | None = None
    # Deterministic mode without batch-invariant kernels: every token runs in one shape.
    one_segment: bool = False
    # A sampled id must be below this; a request that gets another one ends with an error.
    vocab_size: int = 2**31
    speculative: SpeculativeConfig | None = None  # None: no drafts
    max_loras: int = 0  # adapters that may be in use at once
    answer_room: int = 1  # tokens that the context must have left for an answer
    encoder_tokens: int = 0  # embeddings of images that the device keeps; 0: requests have none

    @property
    def free_tokens(self) -> int:
        """Tokens computed in the time it takes to read all weights (the roofline's ridge)."""
        return self.full_step or FREE_TOKENS

    @property
    def most_drafts(self) -> int:
        """Maximum drafts per row."""
        return 0 if self.speculative is None else self.speculative.num_speculative_tokens

    @property
    def max_decode_rows(self) -> int:
        """Maximum tokens of all decodes in a step, drafts included."""
        return decode_rows(self.max_num_seqs, self.most_drafts)

    @property
    def sampler_rows(self) -> int:
        """Rows of the sampler's state pool."""
        return min(self.max_adjusted_seqs or self.max_num_seqs, self.max_num_seqs)

    @property
    def largest_chunk(self) -> int:
        """Maximum tokens of one request prefilled per step, in whole tiles."""
        return self.max_num_batched_tokens // self.prefill_tile * self.prefill_tile
