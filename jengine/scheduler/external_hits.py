"""How much of the requests' prompts was found outside of the device, counted once for each request.

In: requests that are looked up, and what was loaded for them. Out: tokens, for `Counts`. As vLLM
counts its external prefix cache: queries are the tokens that the device does not have. Must not
know blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

from jengine.request import Request


@dataclass
class ExternalHits:
    """Tokens looked up and tokens found, of requests that were never preempted."""

    queries: int = 0
    hits: int = 0

    def looked_up(self, request: Request, hit: int) -> None:
        """A request is looked up outside; the device has its first `hit` tokens."""
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
