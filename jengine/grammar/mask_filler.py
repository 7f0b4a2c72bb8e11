"""Computes token masks of many rows at once.

In: matchers. Out: a bitmask over the vocabulary for each. With enough CPU cores they are computed
in one call, on llguidance's threads without the GIL. Must not know plans or rows.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from jengine.grammar.compiler import GrammarCompiler
from jengine.grammar.matcher import ANY_TOKEN
from jengine.outputs import Refusal

if TYPE_CHECKING:  # imported with the first grammar
    from llguidance import LLExecutor, LLMatcher

# Fewer masks, or with fewer cores, are computed on the calling thread: waking others takes as long.
LEAST_PARALLEL, LEAST_PROCESSORS = 16, 4


class Follower(Protocol):
    """A matcher, or a stand-in with its interface."""

    @property
    def refusal(self) -> Refusal | None: ...

    @property
    def is_terminated(self) -> bool: ...

    @property
    def deciding(self) -> LLMatcher | None: ...

    def advance(self, tokens: Sequence[int]) -> bool: ...

    def copy(self) -> Follower: ...

    def settle(self, mask: np.ndarray) -> None: ...

    def forced(self) -> list[int]: ...


class MaskFiller:
    """Fills masks over the logits' vocabulary; the compiler's tokenizer may have a larger one."""

    def __init__(self, compiler: GrammarCompiler, words: int) -> None:
        self._compiler = compiler
        self._words = words
        self._threads: LLExecutor | None = None
        self._least = LEAST_PARALLEL if (os.cpu_count() or 1) >= LEAST_PROCESSORS else 1 << 30

    def filled(self, matchers: Sequence[Follower]) -> np.ndarray:
        """Bitmask of allowed next tokens per matcher, i32[matchers, words]."""
        deciding = [
            (grammar, place)
            for place, one in enumerate(matchers)
            if (grammar := one.deciding) is not None
        ]
        words = self._tokenizer_words() if deciding else self._words
        masks = np.full((len(matchers), words), ANY_TOKEN, np.int32)
        self._compute(deciding, masks)
        for one, mask in zip(matchers, masks, strict=True):
            one.settle(mask)
        return masks[:, : self._words]

    def _tokenizer_words(self) -> int:
        tokenizer = self._compiler.tokenizer
        assert tokenizer is not None, "a core's compiler has a tokenizer"
        return -(-tokenizer.vocab_size // 32)

    def _compute(self, grammars: list[tuple[LLMatcher, int]], masks: np.ndarray) -> None:
        begin, size = masks.ctypes.data, masks.strides[0]
        if len(grammars) < self._least:
            for grammar, place in grammars:
                grammar.unsafe_compute_mask_ptr(begin + place * size, size)
            return
        if self._threads is None:
            from jengine.grammar import guidance  # imported by the first matcher

            self._threads = guidance.mask_threads()
        self._threads.unsafe_compute_mask_ptr(grammars, begin, size, len(masks))


def leaves_no_choice(masks: np.ndarray) -> np.ndarray:
    """Whether each mask allows exactly one token, bool[masks]."""
    return np.bitwise_count(masks.view(np.uint32)).sum(axis=1) == 1
