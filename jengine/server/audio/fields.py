"""Form fields of transcription and translation requests, and their validation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from jengine.request_parameters import Amount, Given, struct_of
from jengine.sampling_params import PARAMETERS
from jengine.server.errors import ApiError
from jengine.server.http.body import fields_of, wrong_type
from jengine.server.http.form import Form

FORMATS = ("json", "text", "verbose_json", "srt", "vtt")
GRANULARITIES = "timestamp_granularities[]"


if TYPE_CHECKING:

    class SampledRequest(msgspec.Struct, kw_only=True):
        """Sampling parameters that are read from a form by name."""

        temperature: float | None = None

else:
    SampledRequest = struct_of(PARAMETERS, Given.AUDIO)


class AudioRequest(SampledRequest, kw_only=True):
    """Text fields of the multipart form."""

    model: str | None = None
    language: str | None = None
    to_language: str | None = None
    prompt: str | None = None
    response_format: Literal["json", "text", "verbose_json", "srt", "vtt"] | None = None
    max_completion_tokens: Amount | None = None
    stream: bool | None = None
    stream_include_usage: bool | None = None
    stream_continuous_usage_stats: bool | None = None
    granularities: list[Literal["word", "segment"]] = msgspec.field(
        default_factory=list, name=GRANULARITIES
    )

    @property
    def tells_times(self) -> bool:
        """Whether the model should generate timestamp tokens."""
        return self.response_format in ("verbose_json", "srt", "vtt")


def audio_request(form: Form) -> tuple[AudioRequest, bytes, tuple[str, ...]]:
    """Return the parsed fields, the file's bytes, and the names of unknown fields."""
    content = form.files.get("file")
    if content is None:
        what = "text" if "file" in form.fields else "nothing"
        raise ApiError(
            400, f"file: expected an audio file, got {what}. Send it with a file name.",
            param="file",
        )  # fmt: skip
    if not content:
        raise ApiError(400, "file: the audio file is empty.", param="file")
    known = fields_of(AudioRequest)
    given: dict[str, str | list[str]] = {}
    for name, values in form.fields.items():
        # Clients write the list's name with or without brackets.
        name = GRANULARITIES if name == GRANULARITIES.removesuffix("[]") else name
        if name not in known:
            continue
        if name != GRANULARITIES and len(values) > 1:
            raise ApiError(400, f"{name}: given {len(values)} times; expected once.", param=name)
        given[name] = values if name == GRANULARITIES else values[0]
    try:
        request = msgspec.convert(given, AudioRequest, strict=False)
    except msgspec.ValidationError as error:
        raise wrong_type(str(error)) from error
    _check(request)
    unknown = tuple(
        sorted(name for name in form.fields if name not in known and f"{name}[]" not in known)
    )
    return request, content, unknown


def _check(request: AudioRequest) -> None:
    kind = request.response_format
    if request.stream and request.tells_times:
        raise ApiError(
            400, f"{kind} format doesn't support streaming case", param="response_format"
        )
    if "word" in request.granularities:
        raise ApiError(
            400, "timestamp_granularities: times of single words are not built; 'segment' is.",
            param="timestamp_granularities",
        )  # fmt: skip
    if request.granularities and kind != "verbose_json":
        raise ApiError(
            400, "timestamp_granularities needs response_format=verbose_json.",
            param="timestamp_granularities",
        )  # fmt: skip
    if (request.stream_include_usage or request.stream_continuous_usage_stats) and (
        not request.stream
    ):
        raise ApiError(
            400, "Stream options can only be defined when `stream=True`.",
            param="stream_include_usage",
        )  # fmt: skip
