"""What runs llguidance itself. Imported for the first grammar, as few engines have any.

In: GrammarSpecs and tokenizers. Out: llguidance's matchers, and its threads. Must not know
deadlines, or what is kept.
"""

from __future__ import annotations

from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer

from jengine.grammar.sources import llguidance_grammar
from jengine.structured_outputs import GrammarSpec


def limits() -> LLParserLimits:
    """llguidance's bounds. Messages do not show the state of a parser."""
    return LLParserLimits(max_lexer_states=50_000, verbose_errors=False)


def compiled(spec: GrammarSpec, tokenizer: LLTokenizer | None) -> tuple[LLMatcher | None, str]:
    """The matcher, None without a tokenizer; and what is wrong with the grammar, if anything."""
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
    """Threads that compute masks."""
    return LLExecutor()
