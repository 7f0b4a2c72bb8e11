"""Applies a step's outputs to its requests: appends tokens, publishes blocks, ends requests.

In: a flight and its StepOutput. Out: TokenDeltas. Must not know who runs next.
"""

from __future__ import annotations

from jengine.kvcache.coordinator import CacheCoordinator
from jengine.logprobs import StepLogprobs
from jengine.outputs import NOT_FINITE, StepOutput, TokenDelta
from jengine.request import FINISHED, RUNNING, Request
from jengine.scheduler.flights import Flight
from jengine.scheduler.lifecycle import Lifecycle


class Committer:
    """Gives the tokens of plans to their requests."""

    def __init__(self, cache: CacheCoordinator, requests: Lifecycle) -> None:
        self._cache = cache
        self._requests = requests

    def commit(self, flight: Flight, output: StepOutput) -> list[TokenDelta]:
        """The deltas of one step, in plan order."""
        plan, requests = flight.plan, self._requests
        requests.side_results.gather(plan, flight.requests, output)
        ends = (plan.entries.starts + plan.entries.lengths).tolist()
        wants_tokens, tokens = plan.entries.wants_tokens.tolist(), output.tokens.tolist()
        assert len(tokens) == sum(wants_tokens), "an item for each entry that wants tokens"
        deltas: list[TokenDelta] = []
        num_open, sampled = len(requests.open), 0
        for request, end, wanted in zip(flight.requests, ends, wants_tokens, strict=True):
            if request.status is RUNNING:
                request.num_processed = end
            if not wanted:
                continue
            if request.status is not FINISHED:
                delta = self._commit_tokens(request, tokens[sampled], flight.weights_version)
                if output.logprobs is not None:
                    delta.logprobs = logprobs_of(request, output.logprobs, sampled, delta)
                deltas.append(delta)
            sampled += 1
        if len(requests.open) < num_open:
            requests.drop_finished()
        return deltas

    def _commit_tokens(self, request: Request, tokens: list[int], version: int) -> TokenDelta:
        """Append a request's sampled tokens as far as they count, and publish what they complete.

        The token that ended the request is never published: a multi-step decode stops where all
        rows have ended, so this token may not have run.
        """
        request.num_in_flight -= 1
        taken, ending = counted_tokens(request, tokens)
        request.token_ids += taken
        delta = TokenDelta(
            request_id=request.request_id,
            token_ids=taken,
            num_cached_tokens=request.num_cached_tokens,
            weights_version=version,
        )
        if ending == NOT_FINITE:
            self._fail(request, delta)
            return delta
        known = len(request.token_ids)
        computed, complete = request.num_computed, known - (ending is not None)
        if computed >= request.publish_at <= complete and request.status is RUNNING:
            self._cache.publish(request, min(computed, complete))
        self._requests.side_results.deliver(request, delta)
        if ending is not None or known >= request.cap:
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

    It is one of them, unless it says that the logits were not finite.
    """
    if request.ending_ids.isdisjoint(tokens):
        return tokens, None
    count, ending = next(item for item in enumerate(tokens) if item[1] in request.ending_ids)
    return tokens[: count + (ending != NOT_FINITE)], ending


def logprobs_of(
    request: Request, scores: StepLogprobs, sampled: int, delta: TokenDelta
) -> StepLogprobs | None:
    """The log-probabilities of a delta's tokens, from item `sampled` of the step's, if wanted."""
    wanted, count = request.wire.sampling.logprobs, len(delta.token_ids)
    if wanted is None or not count:
        return None
    return StepLogprobs(*(array[sampled, :count] for array in scores)).top(wanted)
