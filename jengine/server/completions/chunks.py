"""A stream of completions: outputs in, events out. All of it together equals the whole answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from msgspec import UNSET

from jengine.outputs import CompletionOutput, RequestOutput
from jengine.server.completions.fields import CompletionRequest
from jengine.server.completions.texts import CompletionTexts
from jengine.server.completions.types import ChunkChoice, CompletionChunk
from jengine.server.formats.request_metrics import told_metrics
from jengine.server.formats.usage import UsageWanted, usage
from jengine.server.http.events import ChoiceEvents, event
from jengine.server.serving.generation import Outputs
from jengine.server.serving.service import Service
from jengine.server.version import FINGERPRINT


class Progress:
    """Stream state of one choice: what has been sent already."""

    def __init__(self) -> None:
        self.begun = False
        self.ended = False
        self.tokens = 0
        self.offset = 0  # of the next token in the text


class CompletionChunks:
    """Converts the outputs of one request into text_completion stream events."""

    def __init__(
        self, request: CompletionRequest, service: Service, id: str, created: int, model: str
    ) -> None:
        self.request = request
        self.texts = CompletionTexts(request, service)
        self.wanted = UsageWanted(request, service.settings)
        self.settings = service.settings
        self.head = {"id": id, "created": created, "model": model}
        self.plain = ChoiceEvents(CompletionChunk(**self.head, choices=[]))
        self.n = request.n or 1
        self.progress: dict[int, Progress] = {}
        self.prompts: dict[int, RequestOutput] = {}  # the last output of each

    async def of(self, outputs: Outputs) -> AsyncGenerator[bytes, None]:
        """Yield all events except the final [DONE]; the events of one output are joined."""
        try:
            async for prompt, output in outputs:
                self.prompts[prompt] = output
                if events := self._events(prompt, output):
                    yield events
            if self.wanted.at_end:
                yield event(self._last())
        finally:
            await outputs.aclose()

    def _events(self, prompt: int, output: RequestOutput) -> bytes:
        events = []
        for one in output.outputs:
            choice = self._choice(prompt * self.n + one.index, output, one)
            if choice is not None:
                events.append(self._event(output, choice))
        return b"".join(events)

    def _choice(
        self, index: int, output: RequestOutput, one: CompletionOutput
    ) -> ChunkChoice | None:
        """Return the choice of the next stream chunk, or None if nothing is new."""
        progress = self.progress.get(index)
        if progress is None:
            progress = self.progress[index] = Progress()
        ends = one.finish_reason is not None and not progress.ended
        if not (ends or one.token_ids or one.text):
            return None
        first, progress.begun, progress.ended = not progress.begun, True, ends
        echo, ids = bool(self.request.echo) and first, bool(self.request.return_token_ids)
        logprobs = self.texts.logprobs(output, one, echo=echo, offset=progress.offset)
        if logprobs is not None and logprobs.tokens:
            progress.offset = logprobs.text_offset[-1] + len(logprobs.tokens[-1])
        progress.tokens += len(one.token_ids)
        return ChunkChoice(
            index=index,
            text=self.texts.text(output, one, echo=echo),
            logprobs=logprobs,
            finish_reason=one.finish_reason,
            stop_reason=one.stop_reason,
            prompt_token_ids=output.prompt_token_ids if echo or (ids and first) else None,
            token_ids=one.token_ids if ids else None,
        )

    def _event(self, output: RequestOutput, choice: ChunkChoice) -> bytes:
        names_server = choice.finish_reason is not None and not self.wanted.at_end
        if not (names_server or self.wanted.always):
            return self.plain.of(choice)
        chunk = CompletionChunk(**self.head, choices=[choice])
        if self.wanted.always:
            tokens = self.progress[choice.index].tokens
            chunk.usage = usage(len(output.prompt_token_ids), tokens, untold=UNSET)
        if names_server:
            chunk.system_fingerprint = FINGERPRINT
        return event(chunk)

    def _last(self) -> CompletionChunk:
        """Return the usage chunk that ends the stream."""
        outputs = self.prompts.values()
        cached = sum(max(output.num_cached_tokens, 0) for output in outputs)
        counts = usage(
            sum(len(output.prompt_token_ids) for output in outputs),
            sum(one.tokens for one in self.progress.values()),
            cached if self.settings.enable_prompt_tokens_details else None,
            untold=UNSET,
        )
        return CompletionChunk(
            **self.head,
            choices=[],
            usage=counts,
            metrics=told_metrics(list(outputs), self.settings) or UNSET,
            system_fingerprint=FINGERPRINT,
        )
