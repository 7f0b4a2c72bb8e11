"""Grammar states of a beam search. No jax.

In: the compiled grammar. Out: each beam's allowed tokens.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from jengine.errors import UnsupportedFeature
from jengine.grammar.compiler import GrammarCompiler
from jengine.grammar.matcher import Matcher
from jengine.structured_outputs import NAME, GrammarSpec

# Above this many, allowed tokens are not sent to the sampler (as in vLLM); candidates are filtered.
FEW = 1024


class BeamGuide:
    """The grammar of one search."""

    def __init__(self, compiler: GrammarCompiler, spec: GrammarSpec, vocab_size: int) -> None:
        compiled, tokenizer = compiler.compiled(spec), compiler.tokenizer
        if compiled is None or tokenizer is None:
            raise UnsupportedFeature(
                f"beam search with {NAME} and an engine core in a process of its own. Leave "
                "multiprocess out."
            )
        self._compiled, self._spec, self._vocab_size = compiled, spec, vocab_size
        self._ends, self._words = tokenizer.eos_tokens, -(-tokenizer.vocab_size // 32)

    def start(self) -> GuidedBeam:
        """Grammar state of a beam without new tokens."""
        return GuidedBeam(self, [])

    def mask_after(self, tokens: list[int]) -> np.ndarray | None:
        """Mask of allowed next tokens, bool[vocabulary]; None if the grammar has terminated."""
        after = self._spec.begins_after
        matcher = Matcher(self._compiled.deep_copy(), self._ends, begins_after=after)
        if not matcher.advance(tokens) or matcher.is_terminated:
            return None
        mask = np.empty(self._words, np.int32)
        matcher.fill(mask)
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[: self._vocab_size]
        return bits.astype(bool) if bits.any() and not matcher.refusal else None


class GuidedBeam:
    """Grammar state of one beam."""

    def __init__(self, guide: BeamGuide, tokens: list[int]) -> None:
        self._guide = guide
        self._tokens = tokens

    def after(self, token: int) -> GuidedBeam:
        """The state after one more token."""
        return GuidedBeam(self._guide, [*self._tokens, token])

    @cached_property
    def allowed(self) -> Any:
        """Mask of allowed next tokens, bool[vocabulary]; None where the beam must end."""
        return self._guide.mask_after(self._tokens)

    def allows(self, token: int) -> bool:
        """Whether a token may follow."""
        return bool(self.allowed[token])

    @property
    def few_allowed(self) -> list[int] | None:
        """Allowed next tokens if few enough to send to the sampler, else None."""
        ids = np.flatnonzero(self.allowed).tolist()
        return ids if len(ids) <= FEW else None
