"""Checks whether grammars support a tokenizer. Must not know llguidance."""

from __future__ import annotations

from jengine.errors import UnsupportedFeature
from jengine.structured_outputs import NAME
from jengine.text.tokenizer import Tokenizer


def check_tokenizer(tokenizer: Tokenizer | None) -> None:
    """Raise UnsupportedFeature if the tokens' bytes are unknown."""
    if tokenizer is None:
        raise UnsupportedFeature(
            f"{NAME} needs a tokenizer (skip_tokenizer_init=True was given). Leave it out."
        )
    if tokenizer.backend is None:
        raise UnsupportedFeature(
            f"{NAME} needs a fast tokenizer, whose tokens' bytes are known; this one is a "
            f"{type(tokenizer.hf).__name__}. Convert it to tokenizer.json, or leave {NAME} out."
        )
