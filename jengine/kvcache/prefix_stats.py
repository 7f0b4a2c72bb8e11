"""Prefix cache hits on the device, counted at admission.

Tokens loaded from outside the device count as external hits only, as in vLLM.
"""

from __future__ import annotations

from dataclasses import dataclass

from jengine.request import Request


@dataclass
class PrefixStats:
    """Tokens queried and hit; preempted requests are counted separately."""

    queries: int = 0
    hits: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0

    def count(self, request: Request, hit: int) -> None:
        """Count an admitted request's known tokens and its hit."""
        if request.wire.skip_reading_prefix_cache:
            return
        if request.num_preemptions:
            self.preempted_queries += request.num_known
            self.preempted_hits += hit
        else:
            self.queries += request.num_known
            self.hits += max(hit - max(request.num_external_tokens, 0), 0)
