"""POST /v1/audio/transcriptions and /v1/audio/translations."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from jengine.engine.speech_renderer import SpeechRenderer
from jengine.server.audio.fields import AudioRequest, audio_request
from jengine.server.audio.job import AudioJob, Task
from jengine.server.errors import ApiError
from jengine.server.http.body import fields_of, ignore, whole_body
from jengine.server.http.form import read_form
from jengine.server.serving.generation import answer
from jengine.server.serving.service import Service

MOST_BYTES = 25 * 2**20  # of a file
SUBTITLES = {"srt": "application/x-subrip", "vtt": "text/vtt"}


async def transcriptions(service: Service, http: Request) -> Response:
    """Transcribe an audio file in its own language."""
    return await spoken(service, http, "transcribe")


async def translations(service: Service, http: Request) -> Response:
    """Translate the speech of an audio file to English."""
    return await spoken(service, http, "translate")


async def spoken(service: Service, http: Request, task: Task) -> Response:
    """Answer a transcription or translation request."""
    live = service.check_serving()
    prompts = live.front.session.input_processor.prompts
    if not isinstance(prompts, SpeechRenderer):
        raise ApiError(
            404,
            f"{http.url.path[1:]} needs a model that reads audio; {live.names.default} does not.",
        )
    form = read_form(await whole_body(http), http.headers.get("content-type", ""))
    request, content, unknown = audio_request(form)
    if len(content) > MOST_BYTES:
        raise ApiError(
            413, f"file: {len(content)} bytes; expected at most {MOST_BYTES}.", param="file"
        )
    if unknown and service.settings.strict_requests:
        raise ApiError(400, f"Unknown fields: {', '.join(unknown)}.", param=unknown[0])
    ignore(http, unknown)
    http.state.fields = fields_of(AudioRequest)
    if task == "translate" and (request.to_language or "en").lower() != "en":
        raise ApiError(
            400, f"to_language={request.to_language!r}: the model translates into 'en' alone.",
            param="to_language",
        )  # fmt: skip
    job = AudioJob(service, http, request, content, task, prompts.speech)
    kind = SUBTITLES.get(request.response_format or "json")
    if kind is None:
        return await answer(service, http, job)
    return await answer(
        service, http, job, lambda outputs: Response(job.subtitles(outputs), media_type=kind)
    )
