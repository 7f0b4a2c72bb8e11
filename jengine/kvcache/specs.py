"""Rules of each paged kind: blocks needed, blocks no longer read, which prefixes are hits.

In: a CacheSpec. Out: its rules. Must not know pools, tables or requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from jengine.config import CacheKind, CacheSpec
from jengine.errors import ConfigError


class CacheRules(Protocol):
    """Rules of a paged kind. Units are blocks unless a name says tokens."""

    def skippable(self, tokens: int) -> int:
        """Leading blocks that no token at position `tokens` or later reads."""

    def longest_hit(self, present: Callable[[int], bool], most: int) -> int:
        """The longest usable prefix of at most `most` blocks, given which blocks are cached."""

    def blocks_needed(self, num_tokens: int, max_chunk: int) -> int:
        """The most blocks one request of `num_tokens` holds while running chunks of `max_chunk`."""

    def chunk_end(self, start: int, end: int) -> int:
        """Latest allowed end, at most `end`, of a chunk that begins at `start`."""


class FullRules:
    """Rules of full attention: a hit needs every earlier block, and none can be skipped or freed
    early."""

    def __init__(self, spec: CacheSpec, block_size: int) -> None:
        self.block_size = block_size

    def skippable(self, tokens: int) -> int:
        return 0

    def longest_hit(self, present: Callable[[int], bool], most: int) -> int:
        return next((i for i in range(most) if not present(i)), most)

    def blocks_needed(self, num_tokens: int, max_chunk: int) -> int:
        return -(-num_tokens // self.block_size)

    def chunk_end(self, start: int, end: int) -> int:
        return end


class SlidingRules:
    """Sliding window: a token reads itself and the `window` - 1 tokens before it."""

    def __init__(self, spec: CacheSpec, block_size: int) -> None:
        if spec.window is None or spec.window < 1:
            raise ConfigError(f"window={spec.window}: a sliding cache needs a window of 1 or more.")
        self.window = spec.window
        self.block_size = block_size

    def skippable(self, tokens: int) -> int:
        return max(0, tokens - self.window + 1) // self.block_size

    def longest_hit(self, present: Callable[[int], bool], most: int) -> int:
        """Search from the right for the first run of present blocks that fills a window, or that
        reaches the start."""
        needed = -(-(self.window - 1) // self.block_size)
        run = 0
        for index in range(most - 1, -1, -1):
            if run == needed:
                return index + 1 + run
            run = run + 1 if present(index) else 0
        return run

    def blocks_needed(self, num_tokens: int, max_chunk: int) -> int:
        # The window and the chunk together, at the worst alignment to blocks.
        span = self.window - 1 + max_chunk
        return min(
            -(-num_tokens // self.block_size), (span + self.block_size - 2) // self.block_size + 1
        )

    def chunk_end(self, start: int, end: int) -> int:
        return end


class ChunkedRules:
    """Chunked attention: a token reads itself and earlier tokens of its chunk of `window` tokens. A
    step's tokens of one request are all in one chunk, so that they read the same blocks."""

    def __init__(self, spec: CacheSpec, block_size: int) -> None:
        assert spec.window is not None, "a chunk has a length"
        if spec.window % block_size:
            raise ConfigError(
                f"block_size={block_size}: expected a divisor of the {spec.window} tokens within "
                "which layers of this model attend."
            )
        self.window = spec.window
        self.block_size = block_size

    def skippable(self, tokens: int) -> int:
        return tokens // self.window * self.window // self.block_size

    def longest_hit(self, present: Callable[[int], bool], most: int) -> int:
        """Search from the right for the longest prefix whose last attention chunk is present."""
        count = most
        while count:
            chunk = range(count - 1, self.skippable(count * self.block_size) - 1, -1)
            missing = next((index for index in chunk if not present(index)), None)
            if missing is None:
                return count
            count = missing
        return 0

    def blocks_needed(self, num_tokens: int, max_chunk: int) -> int:
        # A chunk but for its last token, and the tokens to come.
        span = self.window - 1 + max_chunk
        return -(-min(num_tokens, span) // self.block_size)

    def chunk_end(self, start: int, end: int) -> int:
        return min(end, (start // self.window + 1) * self.window)


RULES: dict[CacheKind, Callable[[CacheSpec, int], CacheRules]] = {
    "full": FullRules,
    "sliding": SlidingRules,
    "chunked": ChunkedRules,
}


def rules_for(spec: CacheSpec, block_size: int) -> CacheRules:
    """Rules of a paged kind; latent caches have those of full or sliding attention."""
    latent: CacheKind = "full" if spec.window is None else "sliding"
    return RULES[latent if spec.shares_heads else spec.kind](spec, block_size)
