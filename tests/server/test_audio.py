"""Routes of audio: forms, languages, parts, times and streams, as OpenAI's clients expect them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient
from tokenizers import Tokenizer as Backend
from tokenizers import models
from transformers import PreTrainedTokenizerFast

from jengine.assembly.build import build_engine
from jengine.assembly.progress import progress_factory
from jengine.assembly.settings.args import EngineArgs
from jengine.media.audio_parts import parts_of
from jengine.server.audio.fields import audio_request
from jengine.server.audio.segments import segments_of, subtitles
from jengine.server.errors import ApiError
from jengine.server.http.form import read_form
from tests.media.test_audio import wav
from tests.media.tiny_whisper import START, greedy, sound, write_whisper
from tests.server.serving import error_of, serving

TRANSCRIBE, TRANSLATE = "/v1/audio/transcriptions", "/v1/audio/translations"
SPECIAL = (
    "<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>", "<|transcribe|>",
    "<|startofprev|>", "<|notimestamps|>",
)  # fmt: skip
TIMES = tuple(f"<|{0.02 * step:.2f}|>" for step in range(51))
WORDS = START + len(SPECIAL) + len(TIMES)
SOUND = sound(0.9, 440)
LINE, KIND = b"--line\r\n", "multipart/form-data; boundary=line"


def form_of(*parts: tuple[str, bytes]) -> bytes:
    told = [
        LINE + f"Content-Disposition: form-data; {head}\r\n\r\n".encode() + content + b"\r\n"
        for head, content in parts
    ]
    return b"".join(told) + b"--line--\r\n"


def test_forms_are_read() -> None:
    content = bytes(range(256)) + b"\r\n--lin\r\n"
    body = form_of(
        ('name="file"; filename="a b.wav"', content), ('name="language"', "dé".encode()),
        ('name="timestamp_granularities[]"', b"segment"),
        ('name="response_format"', b"verbose_json"),
        ('name="temperature"', b"0.5"), ('name="odd"', b"1"),
    )  # fmt: skip
    form = read_form(body, KIND)
    request, file, unknown = audio_request(form)
    assert (file, request.language, request.temperature) == (content, "dé", 0.5)
    assert request.granularities == ["segment"]
    assert unknown == ("odd",)


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"{}", "application/json", 415),
        (form_of(('name="a"', b"b")), "multipart/form-data", 415),
        (form_of(('name="a"', b"b"))[:-8], KIND, 400),
        (LINE + b"no head\r\n--line--", KIND, 400),
        (form_of(("odd=1", b"b")), KIND, 400),
        (form_of(('name="a"', b"\xff")), KIND, 400),
        (form_of(('name="a"', b"b" * 70000)), KIND, 400),
        (form_of(*[('name="a"', b"b")] * 70), KIND, 400),
        (form_of(*[('name="a"; filename="b"', b"b")] * 2), KIND, 400),
    ],
)  # fmt: skip
def test_bad_forms_are_refused(body: bytes, kind: str, status: int) -> None:
    with pytest.raises(ApiError) as raised:
        read_form(body, kind)
    assert raised.value.status == status


def test_long_audio_is_cut_where_it_is_quiet() -> None:
    samples = np.ones(70_000, np.float32)
    samples[24_000:25_600] = samples[48_000:49_600] = 0.0
    parts = parts_of(samples, 30_000, 16000)
    np.testing.assert_array_equal(np.concatenate(parts), samples)
    assert all(len(part) <= 30_000 for part in parts)
    assert 23_000 < len(parts[0]) < 25_600
    assert [len(part) for part in parts_of(samples[:100], 30_000, 16000)] == [100]


def test_times_become_segments_and_subtitles() -> None:
    tokens = [1, 2, 150, 160, 3, 175, 4]  # the time zero is 100, and was in the prompt
    found = segments_of(tokens, [-1.0] * 7, 100, 30.0, lambda ids: f" {ids}", 0.0)
    assert [(one.start, one.end, one.tokens) for one in found] == [
        (30.0, 31.0, [1, 2]), (31.2, 31.5, [3]), (31.5, 31.5, [4]),
    ]  # fmt: skip
    assert found[0].avg_logprob == -1.0
    assert subtitles(found[:1], "srt") == "1\n00:00:30,000 --> 00:00:31,000\n[1, 2]\n\n"
    assert subtitles(found[:1], "vtt").startswith("WEBVTT\n\n00:00:30.000 --> 00:00:31.000\n")


def test_models_without_audio_have_no_such_route() -> None:
    with serving() as client:
        response = client.post(TRANSCRIBE, files={"file": b"x"})
        assert "reads audio" in error_of(response, 404)["message"]


def write_ear(folder: Path) -> Path:
    """A tiny Whisper with a tokenizer."""
    write_whisper(folder, vocab_size=WORDS)
    names = [f"w{number}" for number in range(START)] + [*SPECIAL, *TIMES]
    names[1:3] = "<s>", "</s>"
    backend = Backend(models.WordLevel({name: index for index, name in enumerate(names)}, "w0"))
    backend.add_special_tokens([*SPECIAL, *TIMES])
    hf = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")
    hf.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ear(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[TestClient]:
    args = EngineArgs(
        folder, enforce_eager=True, max_num_seqs=4, max_model_len=32, show_progress=False,
        compilation_config={
            "decode_rows": [4], "prefill_tokens": [64], "variants": ["scored"],
        },
    )  # fmt: skip
    with serving(build_engine(args, progress_factory(False)), served_model_name=("m",)) as client:
        yield client


def said(folder: Path, task: str, count: int, samples: np.ndarray = SOUND, word: str = "en") -> str:
    """What transformers writes, up to the end of its answer."""
    ids = [START + SPECIAL.index(one) for one in (SPECIAL[0], f"<|{word}|>", task, SPECIAL[-1])]
    found = greedy(folder, samples, ids, count)
    found = found[: found.index(2)] if 2 in found else found
    return " ".join(f"w{one}" for one in found if one < START)


def ask(client: TestClient, path: str = TRANSCRIBE, samples: Any = SOUND, **fields: Any) -> Any:
    files = {"file": ("it.wav", wav(samples, 16000, 4))}
    return client.post(path, files=files, data=fields)


@pytest.mark.slow
def test_transcriptions_and_translations(client: TestClient, folder: Path) -> None:
    body = ask(client, language="en", model="m", max_completion_tokens=6).json()
    assert body["usage"] == {"type": "duration", "seconds": 1}
    assert body["text"] == said(folder, "<|transcribe|>", 6)
    body = ask(client, TRANSLATE, language="de", max_completion_tokens=6).json()
    assert body == {"text": said(folder, "<|translate|>", 6, word="de")}
    heard = ask(client, max_completion_tokens=2, response_format="verbose_json").json()
    assert heard["language"] in ("en", "de")


@pytest.mark.slow
def test_streams_bring_the_same_text(client: TestClient) -> None:
    long = np.concatenate([SOUND, sound(0.9, 1200), sound(0.5, 300)])
    whole = ask(client, samples=long, language="en", max_completion_tokens=6).json()["text"]
    response = ask(
        client, samples=long, language="en", max_completion_tokens=6, stream="true",
        stream_include_usage="true",
    )  # fmt: skip
    lines = [line.removeprefix("data: ") for line in response.text.split("\n") if line]
    assert lines[-1] == "[DONE]"
    events = [json.loads(line) for line in lines[:-1]]
    assert {one["object"] for one in events} == {"transcription.chunk"}
    texts = [choice["delta"]["content"] for one in events for choice in one["choices"]]
    assert "".join(texts) == whole
    ends = [one for one in events if one["choices"] and one["choices"][0].get("finish_reason")]
    assert len(ends) >= 3, "each part of the audio ends"
    assert events[-1]["usage"]["completion_tokens"] == 6 * len(ends)


@pytest.mark.slow
def test_times_are_told(client: TestClient) -> None:
    body = ask(client, language="en", response_format="verbose_json").json()
    assert body["duration"] == pytest.approx(0.9)
    assert body["text"] == " ".join(one["text"] for one in body["segments"])
    assert [one["id"] for one in body["segments"]] == list(range(len(body["segments"])))
    response = ask(client, language="en", response_format="vtt")
    assert response.headers["content-type"].startswith("text/vtt")
    assert response.text.startswith("WEBVTT")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"language": "xx"}, 400, "language"),
        ({"response_format": "mp3"}, 400, "response_format"),
        ({"response_format": "srt", "stream": "true"}, 400, "response_format"),
        ({"timestamp_granularities[]": "word"}, 400, "timestamp_granularities"),
        ({"temperature": "hot"}, 400, "temperature"),
        ({"model": "other"}, 404, "model"),
    ],
)
def test_bad_fields_are_named(
    client: TestClient, fields: dict[str, str], status: int, param: str
) -> None:
    assert error_of(ask(client, **fields), status)["param"] == param


@pytest.mark.slow
def test_bad_files_are_refused(client: TestClient) -> None:
    assert client.post(TRANSCRIBE, files={"file": ("a.mp3", b"ID3")}).status_code == 400
    assert client.post(TRANSCRIBE, data={"model": "m"}).status_code == 415
    assert client.post(TRANSCRIBE, files={"other": b"a"}).json()["error"]["param"] == "file"
