"""Streams a transcript: text of the parts in order, although they are transcribed concurrently."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from msgspec import UNSET

from jengine.outputs import RequestOutput
from jengine.server.audio.types import AudioChoice, AudioChunk, AudioDelta
from jengine.server.formats.usage import Usage, usage
from jengine.server.http.events import event
from jengine.server.serving.generation import Outputs

if TYPE_CHECKING:
    from jengine.server.audio.job import AudioJob

OBJECTS = {"transcribe": "transcription.chunk", "translate": "translation.chunk"}


class AudioChunks:
    """Stream events of one transcription request."""

    def __init__(self, job: AudioJob) -> None:
        self.job = job
        forced = job.service.settings.enable_force_include_usage
        self.tells_usage = bool(forced or job.request.stream_include_usage)
        self.always = self.tells_usage and bool(job.request.stream_continuous_usage_stats)
        self.written = 0  # tokens
        self.read: dict[int, int] = {}  # prompt tokens by part
        self.begun: set[int] = set()  # parts whose first text has been sent

    async def of(self, outputs: Outputs) -> AsyncGenerator[bytes, None]:
        """Yield all events except the final [DONE]. Text of a later part is buffered until the
        parts before it are complete."""
        turn, kept = 0, dict[int, list[bytes]]()
        ended = set[int]()
        try:
            async for part, output in outputs:
                events = self._events(part, output)
                if any(one.finish_reason for one in output.outputs):
                    ended.add(part)
                if part != turn:
                    kept.setdefault(part, []).append(events)
                    continue
                while turn in ended:
                    turn += 1
                    events += b"".join(kept.pop(turn, []))
                if events:
                    yield events
            if self.tells_usage:
                yield event(self._chunk([], self._usage()))
        finally:
            await outputs.aclose()

    def _events(self, part: int, output: RequestOutput) -> bytes:
        """Return the event of a part's new text, or b"" if there is none."""
        (one,) = output.outputs
        self.written += len(one.token_ids)
        self.read[part] = len(output.prompt_token_ids)
        text = one.text
        if part and text and part not in self.begun:
            text = self.job.separator + text
        if text:
            self.begun.add(part)
        if not text and one.finish_reason is None:
            return b""
        choice = AudioChoice(delta=AudioDelta(text))
        if one.finish_reason is not None:
            choice.finish_reason, choice.stop_reason = one.finish_reason, one.stop_reason
        return event(self._chunk([choice], self._usage() if self.always else None))

    def _usage(self) -> Usage:
        return usage(sum(self.read.values()), self.written, untold=UNSET)

    def _chunk(self, choices: list[AudioChoice], told: Usage | None) -> AudioChunk:
        job = self.job
        return AudioChunk(
            id=job.request_id, object=OBJECTS[job.task], created=job.created, model=job.model,
            choices=choices, usage=UNSET if told is None else told,
        )  # fmt: skip
