"""SSE chunks of chat completions. Together they equal the whole response."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator

from msgspec import UNSET

from jengine.outputs import CompletionOutput, RequestOutput
from jengine.server.chat.answers import ChatAnswer
from jengine.server.chat.texts import ChatTexts
from jengine.server.chat.types import ChatChunk, DeltaChoice
from jengine.server.formats.request_metrics import told_metrics
from jengine.server.formats.usage import UsageWanted, usage
from jengine.server.http.events import ChoiceEvents, event
from jengine.server.serving.generation import Outputs
from jengine.server.settings import ServerSettings
from jengine.server.version import FINGERPRINT


class ChatProgress:
    """Stream state of one choice."""

    def __init__(self, answer: ChatAnswer) -> None:
        self.answer = answer
        self.ended = False
        self.tokens = 0


class ChatChunks:
    """Converts the outputs of one request into chat.completion.chunk events."""

    def __init__(
        self, texts: ChatTexts, settings: ServerSettings, id: str, created: int, model: str
    ) -> None:
        self.texts = texts
        self.wanted = UsageWanted(texts.request, settings)
        self.settings = settings
        self.head = {"id": id, "created": created, "model": model}
        self.plain = ChoiceEvents(ChatChunk(**self.head, choices=[]))
        self.progress: list[ChatProgress] = []

    async def of(self, outputs: Outputs) -> AsyncGenerator[bytes, None]:
        """Yield all events except the final [DONE]; the events of one output are joined."""
        output: RequestOutput | None = None
        try:
            async for _, output in outputs:
                if events := b"".join(self._events(output)):
                    yield events
            if self.wanted.at_end and output is not None:
                reasoning = await self.texts.counted([one.answer for one in self.progress])
                yield event(self._last(output, reasoning))
        finally:
            await outputs.aclose()

    def _events(self, output: RequestOutput) -> Iterator[bytes]:
        if not self.progress:
            yield from map(event, self._openings(output))
        for one in output.outputs:
            choice = self._choice(one)
            if choice is not None:
                yield self._event(output, choice)

    def _openings(self, output: RequestOutput) -> Iterator[ChatChunk]:
        """Yield the role chunk of each choice, and the echoed text of a continued message."""
        request, texts = self.texts.request, self.texts
        self.progress = [ChatProgress(texts.answer()) for _ in output.outputs]
        deltas = [{"role": texts.role, "content": ""}]
        deltas += [{"content": texts.echoed}] if texts.echoed else []
        for place, delta in enumerate(deltas):
            for index in range(len(self.progress)):
                chunk = self._chunk(output, DeltaChoice(index=index, delta=delta))
                if place == 0:
                    ids, text = request.return_token_ids, request.return_prompt_text
                    chunk.prompt_token_ids = output.prompt_token_ids if ids else None
                    chunk.prompt_text = texts.prompt if text else None
                yield chunk

    def _choice(self, one: CompletionOutput) -> DeltaChoice | None:
        """Return the choice of the next stream chunk, or None if the delta is empty."""
        progress = self.progress[one.index]
        if progress.ended:
            return None
        progress.ended = one.finish_reason is not None
        progress.tokens += len(one.token_ids)
        delta = progress.answer.delta(one, ends=progress.ended)
        token_ids = self.texts.token_ids(one)
        choice = DeltaChoice(
            index=one.index, delta=delta, logprobs=self.texts.logprobs(one), token_ids=token_ids
        )
        if progress.ended:
            choice.finish_reason = progress.answer.finish_reason(one.finish_reason)
            choice.stop_reason = one.stop_reason
        shows_tokens = one.token_ids and (choice.logprobs or token_ids)
        return choice if delta or progress.ended or shows_tokens else None

    def _event(self, output: RequestOutput, choice: DeltaChoice) -> bytes:
        names_server = choice.finish_reason is not None and not self.wanted.at_end
        if not (names_server or self.wanted.always):
            return self.plain.of(choice)
        chunk = self._chunk(output, choice)
        if names_server:
            chunk.system_fingerprint = FINGERPRINT
        return event(chunk)

    def _chunk(self, output: RequestOutput, choice: DeltaChoice) -> ChatChunk:
        chunk = ChatChunk(**self.head, choices=[choice])
        if self.wanted.always:
            tokens = self.progress[choice.index].tokens
            chunk.usage = usage(len(output.prompt_token_ids), tokens, untold=UNSET)
        return chunk

    def _last(self, output: RequestOutput, reasoning: int | None) -> ChatChunk:
        """Return the usage chunk that ends the stream."""
        tells_cached = self.settings.enable_prompt_tokens_details
        counts = usage(
            len(output.prompt_token_ids),
            sum(one.tokens for one in self.progress),
            max(output.num_cached_tokens, 0) if tells_cached else None,
            reasoning,
            untold=UNSET,
            created=self.texts.created_cache_tokens(output),
        )
        return ChatChunk(
            **self.head,
            choices=[],
            usage=counts,
            metrics=told_metrics([output], self.settings) or UNSET,
            system_fingerprint=FINGERPRINT,
        )
