"""Direct calls of llguidance; imported for the first grammar.

In: GrammarSpecs and tokenizers. Out: matchers and threads. Must not know deadlines or caching.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer, grammar_from

from jengine.errors import RequestError
from jengine.grammar.structural_tags import ascii_classes, grammar_of_tags, lark_of
from jengine.structured_outputs import NAME, GrammarSpec, dumped, parsed, without_any_names


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
        # The first mask may take seconds; its work is shared by all copies, so no step waits for
        # it.
        matcher.deep_copy().compute_bitmask()
    return matcher, matcher.get_error()


def mask_threads() -> LLExecutor:
    """llguidance's thread pool for masks."""
    return LLExecutor()


# Maximum text size of a grammar, and nesting depth of its brackets.
MOST_BYTES = 1 << 20
MOST_NESTING = 64
MOST_CHOICES = 20_000
_OUTSIDE_OF_BRACKETS = re.compile(r"\\.|[^\\()\[\]{}]+", re.DOTALL)


def llguidance_grammar(spec: GrammarSpec) -> str:
    _check_size(spec)
    try:
        return _MAKERS[spec.kind](spec)
    except ValueError as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError(f"{NAME}.{spec.kind}: {error}") from error


def _check_size(spec: GrammarSpec) -> None:
    size = len(spec.text.encode("utf-8", "replace"))
    if size > MOST_BYTES:
        raise RequestError(
            f"{NAME}.{spec.kind} has {size} bytes; the most is {MOST_BYTES}. Make it smaller."
        )
    depth = nesting(spec.text)
    if depth > MOST_NESTING:
        raise RequestError(
            f"{NAME}.{spec.kind} is nested {depth} deep; the most is {MOST_NESTING}. Name its "
            "parts ($defs with $ref, or rules) instead."
        )


def nesting(text: str) -> int:
    """Maximum nesting depth of brackets; an estimate, as strings count too."""
    depth = deepest = 0
    for character in _OUTSIDE_OF_BRACKETS.sub("", text):
        depth = depth + 1 if character in "([{" else max(depth - 1, 0)
        deepest = max(deepest, depth)
    return deepest


def _of_schema(spec: GrammarSpec) -> str:
    schema = parsed(f"{NAME}.json", spec.text)
    if not isinstance(schema, dict | bool):
        raise RequestError(
            f"{NAME}.json is a {type(schema).__name__}: expected a JSON schema, an object."
        )
    # coerce_one_of: a oneOf whose parts cannot be told apart is treated as anyOf.
    options: Any = {"whitespace_flexible": spec.whitespace, "coerce_one_of": True}
    if spec.whitespace_pattern is not None:
        options["whitespace_pattern"] = spec.whitespace_pattern
    # llguidance spells the schemas `true` and `false` as objects.
    text = {True: "{}", False: '{"not": {}}'}[schema] if isinstance(schema, bool) else (
        dumped(without_any_names(schema)) if '"propertyNames"' in spec.text else spec.text
    )  # fmt: skip
    return LLMatcher.grammar_from_json_schema(text, defaults=options)


def _of_choice(spec: GrammarSpec) -> str:
    choices = json.loads(spec.text)
    if len(choices) > MOST_CHOICES:
        raise RequestError(f"{NAME}.choice has {len(choices)} items; the most is {MOST_CHOICES}.")
    return grammar_from("choice", spec.text)


def _of_grammar(spec: GrammarSpec) -> str:
    return grammar_from("lark", lark_of(spec.text))


def _of_tags(spec: GrammarSpec) -> str:
    given = parsed(f"{NAME}.structural_tag", spec.text)
    return grammar_of_tags(given, whitespace=spec.whitespace)


_MAKERS: dict[str, Callable[[GrammarSpec], str]] = {
    "json": _of_schema,
    "regex": lambda spec: LLMatcher.grammar_from_regex(ascii_classes(spec.text)),
    "choice": _of_choice,
    "grammar": _of_grammar,
    "structural_tag": _of_tags,
}
