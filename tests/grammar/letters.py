"""Grammars over the tokenizer of letters, whose tokens are single characters."""

from __future__ import annotations

import numpy as np

from jengine.grammar.compiler import GrammarCompiler
from jengine.grammar.matcher import Matcher
from jengine.grammar.shared_tokenizer import data_of
from jengine.grammar.tokens import llguidance_tokenizer
from jengine.structured_outputs import GrammarSpec, StructuredOutputsParams
from tests.engine.scripted import VOCAB
from tests.server.serving import letters

EOS = 2
WORDS = -(-VOCAB // 32)


def compiler() -> GrammarCompiler:
    """A compiler as a core has it."""
    return GrammarCompiler(lambda: llguidance_tokenizer(data_of(letters()), VOCAB, ()))


def regex(text: str) -> GrammarSpec:
    """The grammar of a regular expression."""
    return StructuredOutputsParams(regex=text).spec()


def ids(text: str) -> list[int]:
    """The tokens of a text."""
    return letters().encode(text, False)


def matcher(spec: GrammarSpec, stop_ids: tuple[int, ...] = (EOS,)) -> Matcher:
    """A matcher at the start of an answer."""
    compiled = compiler().compiled(spec)
    assert compiled is not None
    return Matcher(compiled, [EOS], stop_ids, spec.begins_after)


def allowed(of: Matcher) -> str:
    """The characters that may follow; "$" for the end, "^" for the start token."""
    mask = np.empty(WORDS, np.int32)
    of.fill(mask)
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[:VOCAB]
    found = [int(number) for number in np.flatnonzero(bits)]
    return "".join({EOS: "$", 1: "^"}.get(one) or letters().decode([one]) for one in found)
