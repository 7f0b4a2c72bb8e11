"""How much of the requests' prefixes the device had, counted when a request is admitted.

What was loaded for a request from outside of the device counts there alone, as vLLM does it.
"""

from __future__ import annotations

from dataclasses import dataclass

from jengine.request import Request


@dataclass
class PrefixStats:
    """Tokens looked up and tokens found; requests that were preempted count apart."""

    queries: int = 0
    hits: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0

    def count(self, request: Request, hit: int) -> None:
        """Count a request that was looked up, and the tokens found."""
        if request.wire.skip_reading_prefix_cache:
            return
        if request.num_preemptions:
            self.preempted_queries += request.num_known
            self.preempted_hits += hit
        else:
            self.queries += request.num_known
            self.hits += max(hit - max(request.num_external_tokens, 0), 0)
