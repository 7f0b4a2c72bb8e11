"""External prefix cache hits, counted once per request, as vLLM does.

In: requests that are looked up, and tokens loaded for them. Out: tokens, for `Counts`. A query is a
token that the device does not have. Must not know blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

from jengine.request import Request


@dataclass
class ExternalHits:
    """Tokens queried and hit, of requests that were never preempted."""

    queries: int = 0
    hits: int = 0

    def looked_up(self, request: Request, hit: int) -> None:
        """Count the tokens after the device's prefix hit of `hit` tokens as queried, once per
        request."""
        if self._counts(request) and request.num_external_tokens < 0:
            request.num_external_tokens = 0
            self.queries += request.num_known - hit

    def loaded(self, request: Request, tokens: int) -> None:
        """Count a request's loaded tokens as hits, once per request."""
        if self._counts(request) and request.num_external_tokens == 0:
            request.num_external_tokens = tokens
            self.hits += tokens

    @staticmethod
    def _counts(request: Request) -> bool:
        return not (request.num_preemptions or request.wire.skip_reading_prefix_cache)
