"""Batches of requests over one session: submitted together, driven a step at a time.

In: rendered prompts with their parameters. Out: outputs, to the batch they belong to, whoever
drives. Must not know how prompts are written or how results are shown.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any

from jengine.api.interrupt import held_back_interrupts
from jengine.engine.input_processor import Prompt
from jengine.engine.session import Session
from jengine.errors import RequestError
from jengine.outputs import RequestOutput
from jengine.sampling_params import SamplingParams


class Batch:
    """Requests that were submitted together, and their outputs that nobody has taken yet."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.arrived: deque[RequestOutput] = deque()


class Batches:
    """All batches of one session. Several may be run in turn."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._by_request: dict[str, Batch] = {}

    def submit(
        self,
        batch: Batch,
        prompts: Sequence[Prompt],
        params: Sequence[SamplingParams],
        priorities: Sequence[int],
    ) -> None:
        """Queue all prompts, or, with an error, none of them. Ctrl-C waits for the end."""
        try:
            with held_back_interrupts():
                for prompt, wanted, priority in zip(prompts, params, priorities, strict=True):
                    batch.ids.append(self.session.submit(prompt, wanted, priority=priority))
                    self._by_request[batch.ids[-1]] = batch
        except BaseException:
            self.discard(batch.ids)
            raise

    def run(self, batch: Batch) -> Generator[RequestOutput]:
        """Steps until the batch is answered; aborts what is left of it if the caller leaves."""
        pending = set(batch.ids)
        try:
            while pending:
                while batch.arrived:
                    output = batch.arrived.popleft()
                    if output.finished:
                        pending.discard(output.request_id)
                        self._by_request.pop(output.request_id, None)
                    yield output
                if pending:
                    self.step()
        finally:
            self.discard(pending)

    def stream(self, batch: Batch) -> Generator[RequestOutput]:
        """`run` for a caller who may never begin to read."""
        outputs = self.run(batch)
        # A generator that nobody began to read does not run its own `finally`.
        weakref.finalize(outputs, self.discard, batch.ids).atexit = False  # pyrefly: ignore
        return outputs

    def step(self) -> None:
        """One step of the engine; Ctrl-C waits for its end."""
        self.session.core.check_alive()
        assert self.session.has_work, "a caller waits for requests that the engine lost"
        with held_back_interrupts():
            for output in self.session.step():
                self._by_request[output.request_id].arrived.append(output)

    def finish_all(self) -> None:
        """Run until nothing is left; outputs wait in their batches."""
        while self.session.has_work:
            self.step()

    def abort_all(self) -> None:
        """End every request; whoever waits for one finds its last output."""
        for request_id, batch in list(self._by_request.items()):
            output = self.session.abort(request_id)
            if output is not None:
                batch.arrived.append(output)

    def discard(self, ids: Iterable[str]) -> None:
        """End requests whose answers nobody wants any more."""
        for request_id in list(ids):
            self._by_request.pop(request_id, None)
            self.session.discard(request_id)


class Speed:
    """Tokens a second so far, as the progress bar shows them."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.read = 0
        self.written = 0

    def note(self, output: RequestOutput) -> None:
        """Count a finished request."""
        self.read += len(output.prompt_token_ids) * len(output.outputs)
        self.written += sum(len(answer.token_ids) for answer in output.outputs)

    def __str__(self) -> str:
        seconds = max(time.perf_counter() - self.began, 1e-9)
        return (
            f"est. speed input: {self.read / seconds:.2f} toks/s, "
            f"output: {self.written / seconds:.2f} toks/s"
        )


def as_list(prompts: Any) -> list[Any]:
    """One prompt, many or none, as a list of prompts."""
    if isinstance(prompts, (str, Mapping, Prompt)):
        return [prompts]
    if isinstance(prompts, (bytes, int)) or not hasattr(prompts, "__iter__"):
        raise RequestError(
            f"prompts is a {type(prompts).__name__}; expected a string, a list of token ids, a "
            "dict, or a list of these."
        )
    items = list(prompts)
    if items and all(hasattr(item, "__index__") and not isinstance(item, bool) for item in items):
        return [prompts]  # one prompt of token ids
    return items


def spread(name: str, given: Any, count: int) -> list[Any]:
    """One value for all prompts, or one a prompt."""
    if isinstance(given, Sequence) and not isinstance(given, str):
        if len(given) != count:
            raise RequestError(f"{name} has {len(given)} entries for {count} prompts.")
        return list(given)
    return [given] * count
