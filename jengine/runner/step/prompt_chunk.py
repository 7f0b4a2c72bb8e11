"""PromptChunk: prompt tokens that a scoring or pooling program reads. No jax: packed on the
host."""

from __future__ import annotations

from typing import Any, NamedTuple


class PromptChunk(NamedTuple):
    """A chunk of C prompt tokens of the last forward."""

    first: Any  # i32[1] index of the first one among the prefill tokens
    targets: Any  # i32[C] the token after each
    adapters: Any  # i32[C] adapter slots; None: the engine has none
