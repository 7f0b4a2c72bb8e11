"""What a step's outputs mean for its requests: tokens appended, blocks published, answers ended.

In: a flight and its StepOutput. Out: TokenDeltas. Must not know who runs next.
"""

from __future__ import annotations

from jengine.kvcache.coordinator import CacheCoordinator
from jengine.outputs import EntryOutput, StepOutput, TokenDelta
from jengine.request import FINISHED, RUNNING, Request
from jengine.scheduler.flights import Flight
from jengine.scheduler.lifecycle import Lifecycle

NOT_FINITE = -1


class Committer:
    """Gives the tokens of plans to their requests."""

    def __init__(self, cache: CacheCoordinator, requests: Lifecycle) -> None:
        self._cache = cache
        self._requests = requests

    def commit(self, flight: Flight, output: StepOutput) -> list[TokenDelta]:
        """The deltas of one step, in plan order."""
        plan = flight.plan
        assert len(output.entries) == len(plan.entries), "one output for each entry"
        self._requests.side_results.gather(plan, flight.requests, output)
        deltas: list[TokenDelta] = []
        has_finished = False
        for request, entry, result in zip(
            flight.requests, plan.entries, output.entries, strict=True
        ):
            if request.status is RUNNING:
                request.num_processed = entry.start + entry.length
            if entry.wanted and request.status is not FINISHED:
                delta = self._commit_tokens(request, result, flight)
                has_finished |= delta.finish_reason is not None
                deltas.append(delta)
        if has_finished:
            self._requests.drop_finished()
        return deltas

    def _commit_tokens(self, request: Request, result: EntryOutput, flight: Flight) -> TokenDelta:
        """Append a request's sampled tokens as far as they count, and publish what they complete.

        The token that ended the request is never published: a multi-step decode stops where all
        rows have ended, so this token may not have run.
        """
        request.num_in_flight -= 1
        taken, ending = counted_tokens(request, result.tokens)
        request.token_ids += taken
        delta = TokenDelta(
            request_id=request.request_id,
            token_ids=taken,
            num_cached_tokens=request.num_cached_tokens,
            weights_version=flight.weights_version,
        )
        if result.logprobs is not None and taken:
            delta.logprobs = result.logprobs.cut(0, len(taken))
        if ending == NOT_FINITE:
            self._fail(request, delta)
            return delta
        computed, known = request.num_computed, request.num_known - (ending is not None)
        if computed >= request.publish_at <= known and request.status is RUNNING:
            self._cache.publish(request, min(computed, known))
        self._requests.side_results.deliver(request, delta)
        if ending is not None or request.num_known >= request.cap:
            self._stop(request, ending, delta)
        return delta

    def _stop(self, request: Request, ending: int | None, delta: TokenDelta) -> None:
        """End of sequence, then stop ids, then the length cap."""
        delta.finish_reason = "length" if ending is None else "stop"
        if ending is not None and ending not in request.wire.eos_token_ids:
            delta.stop_reason = ending
        self._requests.finish(request)

    def _fail(self, request: Request, delta: TokenDelta) -> None:
        """End one request whose logits were not finite; its blocks are never found again."""
        self._cache.distrust(request)
        delta.finish_reason = "error"
        delta.message = (
            f"The logits at position {request.num_known} were not finite, so no token could "
            "be sampled. Other requests are not affected; check the weights and the dtype."
        )
        self._requests.side_results.deliver(request, delta)
        self._requests.finish(request)


def counted_tokens(request: Request, tokens: list[int]) -> tuple[list[int], int | None]:
    """The tokens up to the one that ends the request, which is returned if there is one.

    A token that is not finite ends it as well, and does not count.
    """
    for index, token in enumerate(tokens):
        if token == NOT_FINITE:
            return tokens[:index], token
        if token in request.ending_ids:
            return tokens[: index + 1], token
    return tokens, None
