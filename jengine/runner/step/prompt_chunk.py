"""PromptChunk: which prompt tokens a program reads. No jax, since it is packed on the host."""

from __future__ import annotations

from typing import Any, NamedTuple


class PromptChunk(NamedTuple):
    """A chunk of C prompt tokens of the last forward."""

    first: Any  # i32[1] the first one's place among the prefill tokens
    targets: Any  # i32[C] the token after each
    adapters: Any  # i32[C] adapter slots; None: the engine has none
