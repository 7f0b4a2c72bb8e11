"""Answers prompts in the caller's thread, with progress bars.

In: prompts and parameters as given to `LLM`. Out: outputs, all at once or as they grow. A batch
exists before its first request is queued and records each, so that any exception, Ctrl-C included,
can abort all of them.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from functools import partial
from typing import Any

from tqdm.auto import tqdm

from jengine.api.arguments import Loras, Params
from jengine.api.front import Front
from jengine.api.request_batches import RequestBatch, RequestBatches
from jengine.assembly.progress import ProgressFactory, progress_factory
from jengine.outputs import RequestOutput

# None: on a terminal and in notebooks; True: always.
Progress = bool | ProgressFactory | None
# A bar for less than this many seconds would only flicker.
SHORTEST_BAR = 0.5


class Answering:
    """The requests of one LLM: answered at once, streamed, or queued for later."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self.batches = RequestBatches(front.session)
        self._queued: list[RequestBatch] = []

    def answer(
        self,
        prompts: Any,
        sampling_params: Params,
        use_tqdm: Progress,
        priority: int | Sequence[int] | None = None,
        taps: int | Sequence[int] = 0,
        lora_request: Loras = None,
    ) -> list[RequestOutput]:
        """Run the engine until all prompts are answered. Returns outputs in the order of the
        prompts."""
        self.batches.check_running()
        batch = RequestBatch()
        try:
            self._submit(batch, prompts, sampling_params, use_tqdm, priority, taps, lora_request)
            return self.complete(batch, use_tqdm)
        finally:
            self.batches.discard(batch)

    def stream(
        self, prompts: Any, sampling_params: Params, lora_request: Loras = None
    ) -> Generator[RequestOutput]:
        """Queue prompts now, and yield their outputs as they grow. Closing the generator aborts the
        rest."""
        self.batches.check_running()
        batch = RequestBatch()
        try:
            self._submit(
                batch, prompts, sampling_params, False, lora_request=lora_request, streaming=True
            )
            return self.batches.stream(batch)
        except BaseException:
            self.batches.discard(batch)
            raise

    def enqueue(
        self,
        prompts: Any,
        sampling_params: Params,
        use_tqdm: Progress,
        priority: int | Sequence[int] | None = None,
        lora_request: Loras = None,
    ) -> list[str]:
        """Queue prompts for `complete_queued`. Returns the request ids."""
        batch = RequestBatch()
        try:
            self._submit(
                batch, prompts, sampling_params, use_tqdm, priority, lora_request=lora_request
            )
            self._queued.append(batch)
        except BaseException:
            self.batches.discard(batch)
            raise
        return batch.ids

    def complete_queued(self, use_tqdm: Progress) -> list[RequestOutput]:
        """Answer everything that `enqueue` has queued, in that order."""
        self.batches.check_running()
        batches, self._queued = self._queued, []
        try:
            return [output for batch in batches for output in self.complete(batch, use_tqdm)]
        finally:
            for batch in batches:  # after Ctrl-C, aborts all of them
                self.batches.discard(batch)

    def _submit(
        self,
        batch: RequestBatch,
        prompts: Any,
        sampling_params: Params,
        use_tqdm: Progress,
        priority: int | Sequence[int] | None = None,
        taps: int | Sequence[int] = 0,
        lora_request: Loras = None,
        *,
        streaming: bool = False,
    ) -> None:
        """Validate and queue all prompts; after an error none is queued."""
        asked = self._front.asked(
            prompts, sampling_params, priority, lora_request, taps, streaming=streaming
        )
        with bar(use_tqdm, len(asked), "Rendering prompts") as progress:
            self.batches.submit(batch, asked, partial(progress.update, 1))

    def complete(self, batch: RequestBatch, use_tqdm: Progress) -> list[RequestOutput]:
        """Run the engine until the batch is answered."""
        done: dict[str, RequestOutput] = {}
        speed = Speed()
        with bar(use_tqdm, len(batch.answers), "Processed prompts") as progress:
            for output in self.batches.run(batch):
                if output.finished:
                    done[output.request_id] = output
                    speed.note(output)
                    progress.set_postfix_str(str(speed), refresh=False)
                    progress.update(len(output.outputs))
        return [done[request_id] for request_id in batch.ids]


def bar(use_tqdm: Progress, total: int, label: str) -> Any:
    """A progress bar, which for a single request appears only if it takes a while."""
    if use_tqdm is False:
        return tqdm(disable=True)
    quiet = {"delay": SHORTEST_BAR} if total == 1 and use_tqdm is None else {}
    return progress_factory(use_tqdm)(total=total, desc=label, **quiet)


class Speed:
    """Tokens per second so far, as the progress bar shows them."""

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
