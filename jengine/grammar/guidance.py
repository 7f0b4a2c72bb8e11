"""Direct calls of llguidance; imported for the first grammar.

In: GrammarSpecs and tokenizers. Out: matchers and threads. Must not know deadlines or caching.
"""

from __future__ import annotations

from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer

from jengine.grammar.sources import llguidance_grammar
from jengine.structured_outputs import GrammarSpec


def limits() -> LLParserLimits:
    """llguidance's resource limits; messages without parser state."""
    return LLParserLimits(max_lexer_states=50_000, verbose_errors=False)


def compiled(spec: GrammarSpec, tokenizer: LLTokenizer | None) -> tuple[LLMatcher | None, str]:
    """Return (matcher, error); the matcher is None without a tokenizer, the error "" for a valid
    grammar."""
    grammar = llguidance_grammar(spec)
    if tokenizer is None:
        wrong, found = LLMatcher.validate_grammar_with_warnings(grammar, limits=limits())
        return None, found[0] if wrong else ""
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits())
    if not matcher.is_error():
        # What a first mask takes, seconds for some, is kept for all copies: no step waits for it.
        matcher.deep_copy().compute_bitmask()
    return matcher, matcher.get_error()


def mask_threads() -> LLExecutor:
    """llguidance's thread pool for masks."""
    return LLExecutor()
