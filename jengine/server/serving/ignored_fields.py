"""Unknown request fields: counted, and logged once per name.

In: field names. Out: a count, and one warning per name. Such requests are served, since clients
send fields of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

logger = logging.getLogger(__name__)
# Former fields of vLLM's guided decoding, ignored there too.
REMOVED = frozenset(
    f"guided_{name}"
    for name in ("json", "regex", "choice", "grammar", "decoding_backend", "whitespace_pattern")
)
# Limit of logged names, which clients choose.
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
    """Log a new unknown name."""
    if name in REMOVED:
        logger.warning(
            "A request has the field %s, which is ignored: it has been removed, and its answer is "
            "NOT constrained. Send structured_outputs or response_format instead.",
            name,
        )
    else:
        logger.warning("A request has the unknown field %.80r, which is ignored.", name)
