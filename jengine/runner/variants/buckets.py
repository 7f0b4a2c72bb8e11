"""Buckets: the few shapes that steps are compiled for, and the choice of one for a plan.

A step's tokens are laid out as [decode rows | prefill tokens]. No jax.

One page count by default: attention loops end at the longest row, so buckets for shorter contexts
would save nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from jengine.config import CacheGroup
from jengine.errors import ConfigError

# XLA on the CPU turns matmuls with a single row into slow scalar loops.
FEWEST_DECODE_ROWS = 2
# Decode rows whose padding costs hardly anything in a prefill; FEW_ROWS times as many do cost.
FEW_ROWS = 8
# Prompt tokens per chunk of prompt log-probabilities, which bounds the memory of their logits.
SCORED_AT_ONCE = 64
SCORED_AT_ONCE_ON_GPUS = 128
# Stop ids per row at which a multi-step decode ends early. A row with more of them may run longer
# than needed; the scheduler drops those tokens.
ENDINGS = 8


@dataclass(frozen=True)
class Bucket:
    """One compiled shape: decode rows, prefill tokens, and the most cache pages of a row."""

    decode_rows: int
    prefill_tokens: int
    pages: int
    repeats: int = 1  # maximum runs of the step per call; more than 1: multi-step decode

    def __str__(self) -> str:
        times = f"*{self.repeats}" if self.is_multi_step else ""
        return f"{self.decode_rows}+{self.prefill_tokens}x{self.pages}{times}"

    @property
    def is_multi_step(self) -> bool:
        """Whether one call runs several decode steps."""
        return self.repeats > 1

    @property
    def num_tokens(self) -> int:
        """Tokens per run of the step, padding included."""
        return self.decode_rows + self.prefill_tokens

    def covers(self, other: Bucket) -> bool:
        """Whether every plan that fits `other` fits this bucket."""
        return (
            self.decode_rows >= other.decode_rows
            and self.prefill_tokens >= other.prefill_tokens
            and self.pages >= other.pages
            and self.repeats == other.repeats
        )


NO_TOKENS = Bucket(0, 0, 0)


@dataclass(frozen=True)
class Slots:
    """Shape of a head program: number of sampling slots, or of prompt tokens, whose hidden states
    it reads."""

    count: int

    def __str__(self) -> str:
        return f"{self.count} slots"

    @property
    def num_tokens(self) -> int:
        """Hidden states read, padding included."""
        return self.count


@dataclass(frozen=True)
class ChosenExperts:
    """Shape of the routing output, [layers, experts per token]; dense layers are zeros."""

    layers: int
    chosen: int  # experts per token, the maximum over layers
    dtype: str  # the smallest that holds every expert's index
    returned: bool = True  # to the client


@dataclass(frozen=True)
class StepShapes:
    """Shapes that all buckets of one engine share."""

    groups: tuple[CacheGroup, ...]
    block_size: int
    prefill_tile: int
    max_rows: int
    max_model_len: int
    # Deterministic mode without batch-invariant kernels: every token, prompts included, runs as a
    # decode row. With one shape and one order of arithmetic, a token's values do not depend on the
    # rest of the batch.
    one_segment: bool = False
    # Implementation of the paged operations; None: their default.
    attention: str | None = None
    # Implementation of prefill attention, if different.
    prompts: str | None = None
    # Maximum rows with adjusted logits at a time; None: all.
    max_adjusted: int | None = None
    # Block tables are packed with each plan: in a pipeline, where later stages run a plan after
    # others were submitted. Otherwise tables are on the device, and plans update them.
    packed_tables: bool = False
    # Speculative decoding: maximum drafts per row, and tokens in a row's packed window of drafts.
    most_drafts: int = 0
    draft_window: int = 0
    # Maximum consecutive tiles of a chunk that the prefill attention kernel joins: then tiles are
    # short, which saves padding.
    joined_tiles: int = 1
    # Whether attention may read a prefix shared by neighbouring decode rows once (cascade
    # attention). A row's bits then depend on its neighbours.
    reads_together: bool = False
    # Whether a drafter on the device drafts for the next step.
    makes_drafts: bool = False
    # Positions after a row's last token at which the drafter writes to its KV cache.
    lookahead: int = 0
    # LoRA slots; 0: no LoRA.
    adapter_slots: int = 0
    # Dtype of the temporary keys and values of bidirectional attention.
    uncached: str = "float32"
    # Steps output the routed experts of each token; None: they do not.
    experts: ChosenExperts | None = None
    # Maximum number of later tokens of its image that a token attends to.
    most_ahead: int = 0
    # Whether sampling and prompt scoring are separate programs after the forward.
    chained: bool = False
    # Output of a pooling model, one of POOLED_AS; empty: the model generates.
    pooling: str = ""
    # Numbers of sampling slots that are compiled, so that few samplers serve all buckets.
    slot_rungs: tuple[int, ...] = ()

    def has_drafts(self, bucket: Bucket) -> bool:
        """Whether decode rows of this bucket may be draft tokens."""
        return self.most_drafts > 0 and not bucket.is_multi_step

    @property
    def max_pages(self) -> int:
        """Blocks of a request at the maximum context length."""
        return -(-self.max_model_len // self.block_size)

    def num_tiles(self, bucket: Bucket) -> int:
        """Prefill tiles of a bucket."""
        return bucket.prefill_tokens // self.prefill_tile

    def num_runs(self, bucket: Bucket) -> int:
        """Capacity of a bucket in runs of joined tiles: one extra per chunk, whose last run may be
        short. 0 if tiles are not joined."""
        tiles = self.num_tiles(bucket)
        if self.joined_tiles == 1:
            return 0
        return min(tiles, -(-tiles // self.joined_tiles) + self.max_rows)

    def num_slots(self, bucket: Bucket) -> int:
        """Positions with logits: one per decode row and one per prefilled row, padded to a rung
        where there are rungs."""
        needed = bucket.decode_rows + min(self.num_tiles(bucket), self.max_rows)
        return next((rung for rung in self.slot_rungs if rung >= needed), needed)

    def first_prompt(self, bucket: Bucket) -> int:
        """Index of a bucket's first prefill token."""
        return 0 if self.one_segment else bucket.decode_rows

    def prompt_tokens(self, bucket: Bucket) -> int:
        """Prefill token capacity of a bucket."""
        return bucket.num_tokens - self.first_prompt(bucket)

    @property
    def scored_at_once(self) -> int:
        """Prompt tokens per scoring call; in one segment equal to the number of sampling slots, so
        that both reduce in the same order."""
        if self.one_segment:
            return self.slot_rungs[-1]
        return SCORED_AT_ONCE_ON_GPUS if self.attention == "triton" else SCORED_AT_ONCE

    def is_chained(self, bucket: Bucket) -> bool:
        """Whether a step of this size runs as several programs. Multi-step decode is one program,
        as each run samples the next one's tokens."""
        return self.chained and not bucket.is_multi_step

    def num_new_blocks(self, bucket: Bucket) -> int:
        """Blocks that the step itself can add to tables: enough for its tokens. A cached prefix may
        bring more (see `block_tables.BlockWriter`)."""
        if self.packed_tables:
            return 0
        per_row = (bucket.repeats - 1) // self.block_size + 1
        per_tile = -(-self.prefill_tile // self.block_size)
        per_group = bucket.decode_rows * per_row + self.num_tiles(bucket) * per_tile
        return per_group * len(self.groups)

    def group_pages(self, bucket: Bucket, group: CacheGroup) -> int:
        """Pages that a tile reads in a cache group; with a sliding window, those inside it."""
        if group.spec.window is None:
            return bucket.pages
        run = self.prefill_tile * self.joined_tiles
        tile = run if bucket.prefill_tokens else bucket.repeats
        span = group.spec.window - 1 + tile
        return min(bucket.pages, (span - 1) // self.block_size + 2)


@dataclass(frozen=True)
class Ladders:
    """Rungs that each dimension of a bucket is rounded up to."""

    decode_rows: tuple[int, ...]
    prefill_tokens: tuple[int, ...]
    pages: tuple[int, ...]
    repeats: tuple[int, ...] = (1,)
    # Tokens computed in the time in which a step reads all weights; 0: unknown. If known, there are
    # buckets of short prefills for every number of decode rows, but none of fewer tokens.
    full_step: int = 0
    # Maximum decode rows of a step with prefill, which runs few drafts or none. None: any.
    mixed_rows: int | None = None
    # Whether every step is prefill: pooling models do not decode.
    prompts_only: bool = False

    def __post_init__(self) -> None:
        for name in ("decode_rows", "prefill_tokens", "pages", "repeats"):
            rungs = getattr(self, name)
            if not rungs and name == "prefill_tokens":
                continue  # one segment: prompts run as decode rows
            if not rungs or list(rungs) != sorted(set(rungs)) or rungs[0] < 1:
                raise ConfigError(f"ladder {name}={rungs}: expected growing positive sizes.")

    def buckets(self) -> Iterator[Bucket]:
        """Every bucket, smallest first."""
        for pages in self.pages:
            for rows in () if self.prompts_only else self.decode_rows:
                for repeats in self.repeats:
                    yield Bucket(rows, 0, pages, repeats)
            for tokens in self.prefill_tokens:
                for rows in self.mixed_decode_rows(tokens):
                    yield Bucket(rows, tokens, pages)

    def rare_buckets(self) -> Iterator[Bucket]:
        """Fewer, coarser buckets, for rarely needed variants."""
        for pages in self.pages:
            for rows in () if self.prompts_only else thinned(self.decode_rows, 2):
                for repeats in self.repeats:
                    yield Bucket(rows, 0, pages, repeats)
            short = sum(tokens < self.full_step for tokens in self.prefill_tokens[:-1])
            for tokens in thinned(self.prefill_tokens[short:], 3):
                yield Bucket(self.mixed_decode_rows(tokens)[-1], tokens, pages)

    def mixed_decode_rows(self, prefill_tokens: int) -> tuple[int, ...]:
        """Decode-row rungs of buckets with this many prefill tokens: the largest, and smaller ones
        where padding to the next would cost more than about 1/8 of the step."""
        rungs = self._rungs_with_prompts
        most = rungs[-1]
        # The largest bucket of all can run every step.
        last = {most, self.decode_rows[-1] if prefill_tokens == self.prefill_tokens[-1] else most}
        if self.full_step:
            least = max(FEW_ROWS, self.full_step - prefill_tokens)
            return (
                *(rows for rows, larger in pairwise(rungs)
                  if rows >= least and larger * FEW_ROWS >= prefill_tokens),
                *sorted(last),
            )  # fmt: skip
        few = [rows for rows in rungs if FEW_ROWS <= rows <= most // FEW_ROWS]
        return (*(few[:1] if prefill_tokens < FEW_ROWS * most else ()), *sorted(last))

    @property
    def _rungs_with_prompts(self) -> tuple[int, ...]:
        """Decode-row rungs of steps with prefill tokens."""
        if self.mixed_rows is None:
            return self.decode_rows
        most = rung("decode rows", self.decode_rows, self.mixed_rows)
        return tuple(rows for rows in self.decode_rows if rows <= most)

    @property
    def largest(self) -> Bucket:
        """The bucket that needs the most memory."""
        tokens = self.prefill_tokens[-1] if self.prefill_tokens else 0
        return Bucket(self.decode_rows[-1], tokens, self.pages[-1])

    def smallest_for(
        self, decode_rows: int, prefill_tokens: int, pages: int, repeats: int = 1
    ) -> Bucket:
        """The smallest bucket that holds a plan of this size."""
        rows, tokens = self._smallest_mixed(decode_rows, prefill_tokens)
        return Bucket(
            rows, tokens, rung("pages", self.pages, pages), rung("repeats", self.repeats, repeats)
        )

    def _smallest_mixed(self, decode_rows: int, prefill_tokens: int) -> tuple[int, int]:
        """(decode rows, prefill tokens) of the bucket with the fewest tokens overall: a larger
        prefill rung may come with fewer decode rows."""
        if not prefill_tokens:
            return rung("decode rows", self.decode_rows, decode_rows), 0
        least = rung("prefill tokens", self.prefill_tokens, prefill_tokens)
        sizes = [tokens for tokens in self.prefill_tokens if tokens >= least]
        found = [
            (rung("decode rows", self.mixed_decode_rows(tokens), decode_rows), tokens)
            for tokens in (sizes if least < self.full_step else sizes[:1])
        ]
        return min(found, key=sum)


def rung(what: str, ladder: tuple[int, ...], size: int) -> int:
    """The smallest entry that is at least `size`. Plans never exceed the ladder."""
    for entry in ladder:
        if entry >= size:
            return entry
    raise AssertionError(f"a plan has {size} {what}; the largest bucket has {ladder[-1]}")


def whole_chunks(tokens: int, chunk: int) -> int:
    """Round up to a multiple of the chunk size."""
    return -(-tokens // chunk) * chunk


def slot_rungs(ladders: Ladders, shapes: StepShapes) -> tuple[int, ...]:
    """Sampling-slot counts that get programs: those of pure decode buckets, and the maximum."""
    buckets = list(ladders.buckets())
    decodes = {shapes.num_slots(one) for one in buckets if not one.prefill_tokens}
    return tuple(sorted({*decodes, max(map(shapes.num_slots, buckets))}))


def grow(first: int, last: int, factor: int) -> tuple[int, ...]:
    """Geometric ladder from `first` to `last` inclusive, by `factor`."""
    rungs = []
    size = first
    while size < last:
        rungs.append(size)
        size *= factor
    return (*rungs, last)


def thinned(rungs: tuple[int, ...], every: int) -> tuple[int, ...]:
    """Every `every`-th rung, counted from the largest."""
    return rungs[::-1][::every][::-1]


@dataclass(frozen=True)
class FirstRungs:
    """The smallest sizes that are worth a separate program on a kind of device.

    On a GPU, any step reads all weights, and some hundred tokens are computed in that time:
    `full_step`, see `Ladders`.
    """

    decode_rows: int = FEWEST_DECODE_ROWS
    prefill_tokens: int = 1
    full_step: int = 0


CPU_RUNGS = FirstRungs()


def default_ladders(
    max_num_seqs: int,
    max_num_batched_tokens: int,
    max_model_len: int,
    block_size: int,
    tile: int,
    first: FirstRungs = CPU_RUNGS,
    max_decode_rows: int = 0,
) -> Ladders:
    """Short ladders: one page count, since attention loops end at the longest row; finer rungs for
    prefill tokens, whose padding costs as much as real tokens, and for drafts. `max_decode_rows`
    includes drafts."""
    rows = max(max_num_seqs, FEWEST_DECODE_ROWS)
    drafted = grow(rows, max_decode_rows, 2)[1:] if max_decode_rows > rows else ()
    tokens = -(-max_num_batched_tokens // tile) * tile
    prefills = grow(max(first.prefill_tokens, tile), tokens, 2)
    return Ladders(
        decode_rows=(*grow(first.decode_rows, rows, 4), *drafted),
        prefill_tokens=tuple(
            size for size in prefills if rows + size >= first.full_step or size == tokens
        ),
        pages=(-(-max_model_len // block_size),),
        full_step=first.full_step,
        mixed_rows=rows if drafted else None,
    )
