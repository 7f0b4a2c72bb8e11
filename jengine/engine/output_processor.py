"""The requests that are being answered: which deltas belong to them, and which ids are in use.

In: wire requests and token deltas. Out: the answers that have something new for their readers. Must
not know the scheduler, threads, or how readers wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from jengine.engine.answer import Answer
from jengine.engine.completion import Completion
from jengine.logprobs import NoTexts
from jengine.outputs import TokenDelta
from jengine.request import WireRequest
from jengine.sampling_params import SamplingParams
from jengine.text.token_texts import TokenTexts
from jengine.text.tokenizer import Tokenizer


class Taken(NamedTuple):
    """The effect of a delta on its request."""

    answer: Answer
    has_news: bool  # for the reader, who does not know it yet
    cut_short: bool  # a stop string was found, so the engine should end the completion


class OutputProcessor:
    """Open requests by their users' ids, and completions by the ids of their wire requests."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self.tokenizer = tokenizer
        self._texts = NoTexts() if tokenizer is None else TokenTexts(tokenizer)
        self._by_wire: dict[str, tuple[Answer, Completion]] = {}
        self._by_request: dict[str, Answer] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._by_request

    def __len__(self) -> int:
        return len(self._by_request)

    @property
    def open_answers(self) -> list[Answer]:
        """The requests that have not ended, in order of arrival."""
        return list(self._by_request.values())

    def open(
        self,
        request_id: str,
        text: str | None,
        params: SamplingParams,
        wires: Sequence[WireRequest],
        reader: Any,
    ) -> Answer:
        """Expect deltas for these wire requests, the completions of one prompt."""
        completions = [
            Completion(index, wire, params, self.tokenizer, self._texts)
            for index, wire in enumerate(wires)
        ]
        answer = Answer(request_id, text, params, completions, reader)
        self._by_request[request_id] = answer
        for completion in completions:
            self._by_wire[completion.wire.request_id] = (answer, completion)
        return answer

    def close(self, answer: Answer) -> None:
        """Forget a request, if it is open; later deltas of it are ignored."""
        if self._by_request.get(answer.request_id) is answer:
            del self._by_request[answer.request_id]
        for completion in answer.completions:
            self._by_wire.pop(completion.wire.request_id, None)

    def answer(self, request_id: str) -> Answer | None:
        """The open request with this id."""
        return self._by_request.get(request_id)

    def take(self, delta: TokenDelta) -> Taken | None:
        """Give a delta to its request; None if that is not open any more."""
        if delta.request_id not in self._by_wire:
            return None
        answer, completion = self._by_wire[delta.request_id]
        has_news, cut_short = answer.push(completion, delta)
        if answer.finished:
            self.close(answer)
        return Taken(answer, has_news, cut_short)
