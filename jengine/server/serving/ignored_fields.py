"""Fields of requests that no endpoint knows: counted, and named in the log.

In: names as clients sent them. Out: a count, and one warning per name. Such requests are answered,
as OpenAI's clients and others send fields of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

logger = logging.getLogger(__name__)
# Fields by which vLLM took grammars once. It ignores them since, and so do its clients' answers.
REMOVED = frozenset(
    f"guided_{name}"
    for name in ("json", "regex", "choice", "grammar", "decoding_backend", "whitespace_pattern")
)
# Names that the log tells, at most: clients choose them.
MOST_TOLD = 100


class IgnoredFields:
    """Counts undeclared fields over all requests, and logs each name once."""

    def __init__(self) -> None:
        self.count = 0
        self._told: set[str] = set()

    def note(self, names: Iterable[str]) -> None:
        """Record the undeclared fields of a request."""
        for name in names:
            self.count += 1
            if name not in self._told and len(self._told) < MOST_TOLD:
                self._told.add(name)
                tell(name)


def tell(name: str) -> None:
    """Log a name that has not been seen before."""
    if name in REMOVED:
        logger.warning(
            "A request has the field %s, which is ignored: it has been removed, and its answer is "
            "NOT constrained. Send structured_outputs or response_format instead.",
            name,
        )
    else:
        logger.warning("A request has the unknown field %.80r, which is ignored.", name)
