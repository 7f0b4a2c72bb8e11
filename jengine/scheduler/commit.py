"""Applies a step's outputs to its requests: appends tokens, publishes blocks, ends requests.

In: a flight and its StepOutput. Out: TokenDeltas. Must not know who runs next.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from jengine.kvcache.coordinator import CacheCoordinator
from jengine.logprobs import StepLogprobs
from jengine.outputs import (
    NO_SUCH_TOKEN,
    NO_TOKEN,
    NOT_FINITE,
    POOLED,
    REFUSED,
    Refusal,
    StepOutput,
    TokenDelta,
)
from jengine.plan import TOKENS_NUMBER
from jengine.repetition_detection import RepetitionDetectionParams
from jengine.request import FINISHED, RUNNING, Request
from jengine.scheduler.decode_length import DecodeLength
from jengine.scheduler.flights import Flight
from jengine.scheduler.lifecycle import Lifecycle
from jengine.scheduler.recorder import Recorder
from jengine.scheduler.transfers import BlockTransfers

# The token that ends a request, or why it ends without one: a negative number, or REPEATED.
Ending = int | str | None
REPEATED = "repetition_detected"


class Committer:
    """Applies step outputs to requests: appends tokens, detects stops, builds TokenDeltas."""

    def __init__(
        self,
        cache: CacheCoordinator,
        requests: Lifecycle,
        decode_length: DecodeLength,
        recorder: Recorder,
        vocab_size: int,
        transfers: BlockTransfers,
    ) -> None:
        self._cache = cache
        self._transfers = transfers
        self._requests = requests
        self._lengthening = decode_length
        self._recorder = recorder
        self._vocab_size = vocab_size

    def commit(self, flight: Flight, output: StepOutput) -> list[TokenDelta]:
        """Return the deltas of one step, in plan order."""
        plan, requests = flight.plan, self._requests
        self._recorder.begin_commit(flight)
        requests.side_results.gather(plan, flight.requests, output)
        _, starts, lengths, wanted = plan.entries.columns
        ends = (starts + lengths).tolist()
        wants_tokens, tokens = (wanted == TOKENS_NUMBER).tolist(), self._tokens(output)
        assert len(tokens) == sum(wants_tokens), "an item for each entry that wants tokens"
        if plan.drafts:
            tokens = list(map(without_gaps, tokens))
            self._lengthening.settle(flight, tokens)
        deltas: list[TokenDelta] = []
        num_open, sampled = len(requests.open), 0
        for request, end, wants in zip(flight.requests, ends, wants_tokens, strict=True):
            if not wants:
                if request.status is RUNNING:
                    request.num_processed = end
                continue
            if request.status is not FINISHED:
                version, refusal = flight.weights_version, output.refusals.get(sampled)
                found, forced = tokens[sampled], output.forced.get(sampled)
                if forced:
                    found = [*found, *forced][: request.cap - request.num_known]
                delta = self._commit_tokens(request, found, version, refusal)
                if forced:
                    self._append(request, len(delta.token_ids) - len(tokens[sampled]))
                if output.logprobs is not None:
                    delta.logprobs = logprobs_of(request, output.logprobs, sampled, delta)
                deltas.append(delta)
            sampled += 1
        if len(requests.open) < num_open:
            requests.drop_finished()
        self._recorder.end_commit(flight, ends, deltas)
        return deltas

    def _tokens(self, output: StepOutput) -> list[list[int]]:
        """Sampled tokens per entry; ids beyond the vocabulary are replaced by a marker."""
        tokens = output.tokens
        if tokens.max(initial=0) >= self._vocab_size:
            tokens = np.where(tokens < self._vocab_size, tokens, NO_SUCH_TOKEN)
        return tokens.tolist()

    def _commit_tokens(
        self, request: Request, tokens: list[int], version: int, refusal: Refusal | None = None
    ) -> TokenDelta:
        """Append the accepted tokens up to a stop, and publish the blocks that they complete.

        The token that ended the request is never published: a multi-step decode stops where all
        rows have ended, so this token may not have run.
        """
        request.num_in_flight -= 1
        taken, ending = counted_tokens(request, tokens)
        if request.wire.repetition is not None:
            taken, ending = cut_at_repetition(request, request.wire.repetition, taken, ending)
        request.token_ids.extend(taken)
        delta = TokenDelta(
            request_id=request.request_id,
            token_ids=taken,
            num_cached_tokens=request.num_cached_tokens,
            weights_version=version,
        )
        if isinstance(ending, int) and ending < 0:
            end = self._pool if ending == POOLED else partial(self._fail, ending, refusal)
            end(request, delta)
            return delta
        known = len(request.token_ids)
        computed, complete = request.num_computed, known - (ending is not None)
        if request.status is RUNNING:
            request.num_processed = known - 1  # the last token may not have run
            if computed >= request.publish_at <= complete:
                self._cache.publish(request, min(computed, complete))
        self._requests.side_results.deliver(request, delta)
        if ending is not None or known >= request.cap:
            self._stop(request, ending, delta)
        return delta

    def _append(self, request: Request, count: int) -> None:
        """Mark the last `count` tokens as forced: they run as a prefill chunk after the sampled
        one."""
        self._recorder.appended(count)
        if count > 0 and request.status is RUNNING:
            request.known_at_admission = request.num_known
            request.sent = request.num_processed = request.num_known - count - 1

    def _stop(self, request: Request, ending: Ending, delta: TokenDelta) -> None:
        """Find the first stop, in the order EOS, stop ids, max_tokens, repetition."""
        delta.finish_reason = "length" if ending is None else "stop"
        if ending == REPEATED:
            delta.finish_reason = "repetition"
        if ending not in request.wire.eos_token_ids:
            delta.stop_reason = ending
        delta.times = self._recorder.times(request)
        delta.kv_transfer = self._transfers.finished(request)
        if request.wire.forks and request.status is RUNNING:
            self._cache.keep_partial_block(request)
        self._requests.finish(request)

    def _pool(self, request: Request, delta: TokenDelta) -> None:
        """Finish a pooling request; its vectors are in the delta."""
        self._recorder.ended_without_token()
        delta.times = self._recorder.times(request)
        delta.finish_reason = "stop"
        self._requests.side_results.deliver(request, delta)
        self._requests.finish(request)

    def _fail(
        self, ending: int, refusal: Refusal | None, request: Request, delta: TokenDelta
    ) -> None:
        """Finish a request without a token. After a numerical defect its blocks are never found
        again."""
        if ending == REFUSED:
            self._recorder.ended_without_token()
        else:
            self._cache.distrust(request)
            self._recorder.corrupted_one()
        delta.times = self._recorder.times(request)
        delta.finish_reason = "error"
        refusal = refusal or Refusal(self._reason(request, ending))
        delta.message, delta.refused = refusal.text, refusal.by_request
        self._requests.side_results.deliver(request, delta)
        self._requests.finish(request)

    def _reason(self, request: Request, ending: int) -> str:
        """Error message for a row that got no token."""
        if ending == NOT_FINITE and request.wire.sampling.pools:
            return (
                "The hidden states of the prompt were not finite, so nothing was made of them. "
                "Other requests are not affected; check the weights and the dtype."
            )
        if ending == NOT_FINITE:
            return (
                f"The logits at position {request.num_known} were not finite, so no token could "
                "be sampled. Other requests are not affected; check the weights and the dtype."
            )
        if ending == REFUSED:
            return f"The request's grammar refuses the token at position {request.num_known}."
        return (
            f"The token sampled at position {request.num_known} is not one of the "
            f"{self._vocab_size} in the vocabulary, which is a defect of a kernel. Other requests "
            "are not affected; attention_backend='xla' does without kernels."
        )


def without_gaps(tokens: list[int]) -> list[int]:
    """Drop NO_TOKEN marks (rejected drafts, entries with fewer tokens)."""
    return [token for token in tokens if token != NO_TOKEN]


def counted_tokens(request: Request, tokens: list[int]) -> tuple[list[int], Ending]:
    """Tokens up to the first stop, and that stop.

    The stop token is included, unless it is a negative marker that says why there is no token.
    """
    if request.ending_ids.isdisjoint(tokens):
        return tokens, None
    count, ending = next(item for item in enumerate(tokens) if item[1] in request.ending_ids)
    return tokens[: count + (ending >= 0)], ending


def cut_at_repetition(
    request: Request, rule: RepetitionDetectionParams, tokens: list[int], ending: Ending
) -> tuple[list[int], Ending]:
    """Cut the tokens where they complete a repetition, if no earlier stop does."""
    known, least = request.num_known, request.prompt_length + request.wire.sampling.min_tokens
    answer = request.token_ids[max(request.prompt_length, known - rule.longest) :]
    for count, token in enumerate(tokens, 1):
        answer.append(token)
        if token != ending and least <= known + count < request.cap and rule.found_in(answer):
            return tokens[:count], REPEATED
    return tokens, ending


def logprobs_of(
    request: Request, scores: StepLogprobs, sampled: int, delta: TokenDelta
) -> StepLogprobs | None:
    """Log-probabilities of a delta's tokens, starting at item `sampled` of the step's, if
    requested."""
    wanted, count = request.wire.sampling.logprobs, len(delta.token_ids)
    if wanted is None or not count:
        return None
    return StepLogprobs(*(array[sampled, :count] for array in scores)).top(wanted)
