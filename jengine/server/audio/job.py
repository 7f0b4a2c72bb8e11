"""A transcription or translation request: audio split into parts in, decoder prompts and
transcripts out.

The decoder prompt states the spoken language, the task, and whether to write timestamps. If the
request names no language, it is detected from the first part.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec import UNSET
from starlette.requests import Request

from jengine.media.audio_parts import parts_of
from jengine.media.speech import SpeechProcessor
from jengine.outputs import RequestOutput
from jengine.prompts import TokensPrompt
from jengine.request_parameters import Given, given_on
from jengine.sampling_params import PARAMETERS, RequestOutputKind, SamplingParams
from jengine.server.audio.chunks import AudioChunks
from jengine.server.audio.fields import AudioRequest
from jengine.server.audio.segments import segments_of, subtitles
from jengine.server.audio.types import DurationUsage, Segment, TextResponse, VerboseResponse
from jengine.server.errors import ApiError
from jengine.server.formats.logprobs import finite
from jengine.server.formats.sampling_fields import answer_length
from jengine.server.http.request_head import request_id_of
from jengine.server.http.sse import DONE, Chunks
from jengine.server.serving.generation import Outputs, Prepared
from jengine.server.serving.service import Service

Task = Literal["transcribe", "translate"]
START, BEFORE, NO_TIMES, FIRST_TIME = (
    "<|startoftranscript|>", "<|startofprev|>", "<|notimestamps|>", "<|0.00|>",
)  # fmt: skip
# Languages that are written without spaces between words.
UNSPACED = ("zh", "ja", "th", "lo", "my", "yue")
SAMPLING = tuple(given_on(PARAMETERS, Given.AUDIO))


class AudioJob:
    """A transcription or translation request: one prompt per part of the audio, answers joined."""

    stream_end = DONE

    def __init__(
        self, service: Service, http: Request, request: AudioRequest, content: bytes, task: Task,
        speech: SpeechProcessor,
    ) -> None:  # fmt: skip
        self.service, self.request, self.content, self.task = service, request, content, task
        self.model, self.adapter = service.live.adapters.checked(request.model)
        self.speech = speech
        self.stream = bool(request.stream)
        self.places = 1
        self.client_id = request_id_of(http, None)
        self.request_id = f"{task}-{self.client_id}"
        self.created = int(time.time())
        self.language = request.language.strip().lower() if request.language else ""
        self.starts: list[float] = []  # of the parts, in seconds
        self.duration = 0.0

    @property
    def separator(self) -> str:
        """Text inserted between the transcripts of consecutive parts."""
        return "" if self.language in UNSPACED else " "

    async def prepare(self) -> Prepared:
        """Decode the audio, split it into parts, and build one decoder prompt per part."""
        if self.language:
            self._token(f"<|{self.language}|>", "language")
        rendering, rate = self.service.live.rendering, self.speech.speech.sampling_rate
        parts = await rendering.media.run(self._parts)
        begins = np.cumsum([0, *map(len, parts)])
        *starts, self.duration = (float(one) / rate for one in begins)
        self.starts = starts
        if not self.language:
            self.language = await self._spoken(parts[0])
        ids = self._beginning()
        prompts = [await rendering.media.run(rendering.audio, ids, part) for part in parts]
        return Prepared(prompts, [self._params(one) for one in prompts], 0, self.adapter)

    def _parts(self) -> list[np.ndarray]:
        speech = self.speech.speech
        samples = self.speech.opened(self.content, "file")
        return parts_of(samples, speech.samples, speech.sampling_rate)

    async def _spoken(self, part: np.ndarray) -> str:
        """Detect the language: the most likely language token at the first decoder position."""
        rendering, hf = self.service.live.rendering, self.service.live.rendering.tokenizer.hf
        first = self._token(START) + 1
        languages = list(range(first, self._token("<|translate|>")))
        if not languages:
            raise ApiError(400, "language: this model knows one language alone; give it.")
        prompt = await rendering.media.run(rendering.audio, [first - 1], part)
        params = SamplingParams(temperature=0, max_tokens=1, allowed_token_ids=languages)
        found = -1
        async for output in self.service.generate(prompt, params, f"{self.request_id}-language"):
            found = output.outputs[0].token_ids[-1] if output.outputs[0].token_ids else found
        return str(hf.convert_ids_to_tokens(found)).strip("<|>")

    def _beginning(self) -> list[int]:
        words = (START, f"<|{self.language}|>", f"<|{self.task}|>",
                 FIRST_TIME if self.request.tells_times else NO_TIMES)  # fmt: skip
        ids = [self._token(word) for word in words]
        if not self.request.prompt:
            return ids
        most = self.service.live.engine.schedule.max_model_len // 2 - 1
        tokenizer = self.service.live.rendering.tokenizer
        before = tokenizer.encode(" " + self.request.prompt.strip(), False)
        return [self._token(BEFORE), *before[-most:], *ids]

    def _token(self, word: str, param: str | None = None) -> int:
        """Return the id of a special token; ApiError on `param` if the vocabulary lacks it."""
        known = self.service.live.rendering.tokenizer.hf.get_vocab()
        if word not in known:
            raise ApiError(
                400,
                f"{param or 'The model'}: the vocabulary has no token {word!r}"
                + ("; expected the code of a language, such as 'en'." if param else "."),
                param=param,
            )
        return int(known[word])

    def _params(self, prompt: TokensPrompt) -> SamplingParams:
        request, live = self.request, self.service.live
        known = live.engine.default_params.items()
        usual = {name: value for name, value in known if name != "max_tokens"}
        asked = {name: getattr(request, name) for name in SAMPLING}
        given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
        chosen: dict[str, Any] = {**usual, "temperature": 0.0, **given}
        kind = RequestOutputKind.DELTA if request.stream else RequestOutputKind.FINAL_ONLY
        length = answer_length(
            request.max_completion_tokens, None, len(prompt["prompt_token_ids"]),
            live.engine.schedule.max_model_len,
        )  # fmt: skip
        return SamplingParams(
            **chosen,
            max_tokens=length,
            logprobs=1 if request.response_format == "verbose_json" else None,
            output_kind=kind,
        )

    def whole(self, outputs: Sequence[RequestOutput]) -> msgspec.Struct:
        """Body of the JSON response."""
        if self.request.response_format == "verbose_json":
            found = self.segments(outputs)
            return VerboseResponse(
                duration=self.duration, language=self.language, segments=found,
                text=self.separator.join(one.text for one in found),
            )  # fmt: skip
        text = self.separator.join(one.outputs[0].text for one in outputs)
        seconds = DurationUsage("duration", math.ceil(self.duration))
        return TextResponse(text=text, usage=seconds if self.task == "transcribe" else UNSET)

    def subtitles(self, outputs: Sequence[RequestOutput]) -> str:
        """The transcript as SubRip or WebVTT."""
        return subtitles(self.segments(outputs), str(self.request.response_format))

    def segments(self, outputs: Sequence[RequestOutput]) -> list[Segment]:
        """Timestamped segments of all parts, in order."""
        first, found = self._token(FIRST_TIME), list[Segment]()
        end = set(self.service.live.engine.model.eos_token_ids)
        decode = self.service.live.rendering.tokenizer.decode
        for start, output in zip(self.starts, outputs, strict=True):
            tokens = list(output.outputs[0].token_ids)
            scores = logprobs_of(output, tokens)
            if tokens and tokens[-1] in end:
                tokens, scores = tokens[:-1], scores[:-1]
            found += segments_of(
                tokens, scores, first, start, decode, self.request.temperature or 0.0
            )
        for number, one in enumerate(found):
            one.id = number
        return found

    def chunks(self, outputs: Outputs) -> Chunks:
        return AudioChunks(self).of(outputs)


def logprobs_of(output: RequestOutput, tokens: Sequence[int]) -> list[float]:
    """Log-probability of each generated token, 0 if none were requested."""
    given: Any = output.outputs[0].logprobs
    if given is None:
        return [0.0] * len(tokens)
    return [finite(own[token].logprob) for token, own in zip(tokens, given, strict=True)]
