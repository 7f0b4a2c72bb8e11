"""A session: input_processor, core and answers of one engine, driven one step at a time.

What `LLM` and `AsyncLLM` have in common. Not thread safe: one caller at a time.
"""

from __future__ import annotations

import itertools
from typing import Any

from jengine.engine.input_processor import InputProcessor, Prompt
from jengine.engine.output_processor import OutputProcessor
from jengine.engine.protocol import Core
from jengine.errors import RequestError
from jengine.metrics.stats_log import StatsLog
from jengine.outputs import RequestOutput, TokenDelta
from jengine.sampling_params import SamplingParams


class Session:
    """Submit prompts, call `step` while there is work, get outputs."""

    def __init__(
        self, input_processor: InputProcessor, core: Core, log: StatsLog | None = None
    ) -> None:
        self.input_processor = input_processor
        self.core = core
        self.log = log
        self.answers = OutputProcessor(input_processor.tokenizer)
        self._numbers = itertools.count()

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do."""
        return self.core.has_work

    def submit(
        self,
        prompt: Any,
        params: SamplingParams,
        *,
        request_id: str | None = None,
        priority: int = 0,
    ) -> str:
        """Queue a prompt (rendered or as the user gave it): wholly, or with an error not at all."""
        self.core.check_alive()
        request_id = self._unused_id() if request_id is None else request_id
        if not isinstance(request_id, str) or not request_id:
            raise RequestError(f"request_id={request_id!r}: expected a string that is not empty.")
        rendered = prompt if isinstance(prompt, Prompt) else self.input_processor.render(prompt)
        submission = self.input_processor.submission(request_id, rendered, params, priority)
        if self.answers.knows(submission):
            raise RequestError(f"request_id={request_id!r} is being answered already.")
        self.answers.open(submission)
        try:
            for wire in submission.wires:
                self.core.add(wire)
        except BaseException:
            self.discard(request_id)
            raise
        return request_id

    def _unused_id(self) -> str:
        numbers = map(str, self._numbers)
        return next(number for number in numbers if number not in self.answers)

    def step(self) -> list[RequestOutput]:
        """Run one step of the engine; the outputs it made."""
        outputs = []
        deltas = self.core.step()
        for delta in deltas:
            output, cut_short = self.answers.take(delta)
            if cut_short:
                self.core.abort(delta.request_id)
            if output is not None:
                outputs.append(output)
        if self.log is not None:
            self.log.count(deltas, outputs)
        return outputs

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request and all its completions; its final output with what there is so far."""
        final = None
        for wire_id in self.answers.wire_ids(request_id):
            delta = self.core.abort(wire_id) or ended(wire_id)
            output, _ = self.answers.take(delta)
            final = output or final
        return final

    def discard(self, request_id: str) -> None:
        """End a request whose answer nobody wants any more."""
        for wire_id in self.answers.wire_ids(request_id):
            self.core.abort(wire_id)
        self.answers.close(request_id)


def ended(wire_id: str) -> TokenDelta:
    """The delta of a completion that the core no longer knows."""
    return TokenDelta(request_id=wire_id, token_ids=[], finish_reason="abort")
