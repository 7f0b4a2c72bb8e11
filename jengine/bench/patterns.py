"""Random regular languages, each given as a regular expression and as an EBNF grammar.

In: a random generator. Out: two texts that say the same, so that one can check the other's answers.
"""

from __future__ import annotations

import json
import random
import re
from typing import NamedTuple

WORDS = ("alpha", "beta", "gamma", "x", "id-", "no. ", "yes")
SETS = ("a-z", "0-9", "A-F", "a-z0-9", "xyz")
DEEPEST = 3


class Pattern(NamedTuple):
    """One language in both notations."""

    regex: str
    rule: str  # the right side of a rule of GBNF

    @property
    def grammar(self) -> str:
        """The complete grammar."""
        return f"root ::= {self.rule}\n"


def pattern(draw: random.Random, depth: int = 0) -> Pattern:
    """A random language whose answers are finite."""
    simple = [_word, _set]
    nested = [_sequence, _choice, _repeated]
    if depth == 0:
        return _sequence(draw, depth)
    return draw.choice(simple if depth >= DEEPEST else simple + nested)(draw, depth)


def _word(draw: random.Random, depth: int) -> Pattern:
    word = draw.choice(WORDS)
    return Pattern(re.escape(word), json.dumps(word))


def _set(draw: random.Random, depth: int) -> Pattern:
    one = f"[{draw.choice(SETS)}]"
    return Pattern(one, one)


def _sequence(draw: random.Random, depth: int) -> Pattern:
    parts = [pattern(draw, depth + 1) for _ in range(draw.randint(1, 4))]
    return Pattern("".join(one.regex for one in parts), " ".join(one.rule for one in parts))


def _choice(draw: random.Random, depth: int) -> Pattern:
    parts = [pattern(draw, depth + 1) for _ in range(draw.randint(2, 3))]
    return Pattern(
        f"({'|'.join(one.regex for one in parts)})", f"({' | '.join(one.rule for one in parts)})"
    )


def _repeated(draw: random.Random, depth: int) -> Pattern:
    # Not of what is repeated itself: llguidance's reader of GBNF takes such brackets away.
    one = draw.choice((_word, _set, _choice))(draw, depth + 1)
    suffix = draw.choice(("?", "{1,3}", "{2}", "{0,4}"))
    return Pattern(f"({one.regex}){suffix}", f"({one.rule}){suffix}")
