"""Audio on the host: files, sampling rates, spectrograms."""

from __future__ import annotations

import io
import wave
from collections.abc import Iterator

import numpy as np
import pytest

from jengine.config import SpeechConfig
from jengine.errors import CapacityError, RequestError
from jengine.media import audio, budget
from jengine.media.audio import resampled, samples_of
from jengine.media.sound_files import Head, one_channel, read_file
from jengine.media.speech import SpeechProcessor, log_mel
from tests.media.tiny_whisper import extractor, sound

SPEECH = SpeechConfig(32, 48, 1, 2, mels=16, positions=50, start_token=90)


def wav(samples: np.ndarray, rate: int, size: int, channels: int = 1) -> bytes:
    """A WAV file whose samples have `size` bytes."""
    scaled = np.round(samples * (2 ** (8 * size - 1) - 1)).astype(np.int64)
    data = (scaled + 128 * (size == 1)).astype("<i8").reshape(-1, 1).view(np.uint8)[:, :size]
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(channels)
        out.setsampwidth(size)
        out.setframerate(rate)
        out.writeframes(np.ascontiguousarray(data).tobytes())
    return file.getvalue()


def told(file: bytes, place: int, *values: int) -> bytes:
    """A WAV file whose head says other numbers, of two bytes each."""
    return file[:place] + np.array(values, "<u2").tobytes() + file[place + 2 * len(values) :]


def resampled_at_once(samples: np.ndarray, own: int, wanted: int) -> np.ndarray:
    """The same as `resampled`, with one transform of all samples in float64."""
    margin = own // 10
    seconds = -(-(len(samples) + 2 * margin) // own)
    whole = np.pad(samples.astype(float), (margin, seconds * own - margin - len(samples)))
    count = seconds * wanted
    spectrum = np.fft.rfft(whole)[: count // 2 + 1]
    begin = round(margin * wanted / own)
    found = np.fft.irfft(spectrum, count) * (wanted / own)
    return found[begin : begin + -(-len(samples) * wanted // own)]


@pytest.mark.parametrize("own", [8000, 16001, 44100])
@pytest.mark.parametrize("seconds", [0.01, 2.3])
def test_resampling_in_parts_is_that_of_the_whole(
    own: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = np.random.default_rng(own).standard_normal(int(own * seconds)).astype(np.float32)
    wanted = resampled_at_once(noise, own, 16000)
    for at_once in (3000, 2**19):
        monkeypatch.setattr(audio, "AT_ONCE", at_once)
        np.testing.assert_allclose(resampled(noise, own, 16000), wanted, atol=3e-6)


def test_samples_are_counted_before_they_are_read() -> None:
    def never() -> Iterator[np.ndarray]:
        raise AssertionError("it was read")
        yield

    for head, complaint in (
        (Head(96000 * 590, 96000, 8), "samples of it of the request take 1812480000 bytes"),
        (Head(96000 * 601, 96000, 1), "lasts 601 s"),
    ):
        with pytest.raises(RequestError, match=complaint):
            one_channel(never(), head, "it")


def test_heads_that_say_other_lengths() -> None:
    file = wav(sound(0.05, 300), 16000, 2)
    whole, _ = read_file(file, "it")
    for length in (0xFFFF, 2):  # the upper half of the length of the samples
        longer, _ = read_file(told(file, 42, length), "it")
        np.testing.assert_array_equal(longer, whole)
    shorter, _ = read_file(told(file, 40, 100), "it")
    np.testing.assert_array_equal(shorter, whole[:50])


def test_a_process_decodes_for_strangers() -> None:
    processor, file = SpeechProcessor(SPEECH), wav(sound(0.3, 440), 44100, 2)
    wanted = samples_of(read_file(file, "it"), 16000, "it")
    np.testing.assert_array_equal(processor.opened(file, "it"), wanted)
    with pytest.raises(RequestError, match=r"^it has no samples"):
        processor.opened(wav(np.zeros(0), 16000, 2), "it")


def test_samples_of_all_requests_have_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    decoders, worst = SpeechProcessor(SPEECH).decoders, 4 * 16000 * 600
    decoders.budget.most = 2 * worst
    monkeypatch.setattr(budget, "PATIENCE", 0.01)
    decoded = decoders.samples(wav(sound(0.3, 440), 16000, 2), 16000, "it")
    part = decoded[100:]
    assert decoders.budget.taken == decoded.nbytes == 4 * 4800
    with decoders.budget.room_for(worst), pytest.raises(CapacityError, match="sounds of other"):
        decoders.samples(wav(sound(0.3, 440), 16000, 2), 16000, "it")
    with pytest.raises(RequestError, match="no samples"):
        decoders.samples(wav(np.zeros(0), 16000, 2), 16000, "it")
    del decoded
    assert decoders.budget.taken == 4 * 4800, "a part of it is left"
    del part
    assert decoders.budget.taken == 0


def test_a_limit_of_no_audio_is_kept() -> None:
    processor, file = SpeechProcessor(SPEECH, {"audio": 0}), wav(sound(0.1, 440), 16000, 2)
    for given in (file, [(sound(0.1, 300), 16000)]):
        with pytest.raises(RequestError, match="At most 0 audio"):
            processor.expanded([5], {"audio": given})
    with pytest.raises(RequestError, match="At most 0 audio"):
        processor.opened(file, "it")


@pytest.mark.parametrize("seconds", [0.1, 0.777, 1.0])
def test_spectrograms_equal_those_of_transformers(seconds: float) -> None:
    samples = sound(seconds, 440)
    expected = extractor()(samples, sampling_rate=16000, return_tensors="np").input_features[0]
    found = log_mel(samples, SPEECH).T
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("own", [8000, 16000, 22050, 44100, 48000])
def test_resampling_keeps_a_tone(own: int) -> None:
    times = np.arange(own) / own
    found = resampled(np.sin(2 * np.pi * 440 * times).astype(np.float32), own, 16000)
    assert abs(len(found) - 16000) <= 1
    expected = np.sin(2 * np.pi * 440 * np.arange(len(found)) / 16000)
    assert np.abs(found - expected)[800:-800].max() < 0.01


def test_resampling_removes_what_the_lower_rate_cannot_hold() -> None:
    tone = np.sin(2 * np.pi * 12000 * np.arange(48000) / 48000).astype(np.float32)
    assert np.abs(resampled(tone, 48000, 16000))[800:-800].max() < 0.01


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_wav_files_are_read(size: int) -> None:
    samples = sound(0.05, 300).clip(-0.9, 0.9)
    found, rate = read_file(wav(samples, 8000, size), "it")
    assert rate == 8000
    assert np.abs(found - samples).max() < 2.0 ** (2 - 8 * size) + 1e-6


def test_channels_are_averaged() -> None:
    both = np.stack([np.full(100, 0.5), np.full(100, -0.25)], axis=1)
    found, _ = read_file(wav(both.reshape(-1), 16000, 2, channels=2), "it")
    np.testing.assert_allclose(found, 0.125, atol=1e-3)
    np.testing.assert_allclose(samples_of((both, 16000), 16000, "it"), 0.125)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (b"OggS" + bytes(100), "no WAV file"),
        (b"RIFF\0\0\0\0WAVEfmt ", "cannot be read"),
        (told(wav(np.zeros(8), 16000, 2), 4, 20), "cannot be read"),
        (told(wav(np.zeros(8), 16000, 2), 16, 0x7FFF), "cannot be read"),
        (wav(np.zeros(0), 16000, 2), "no samples"),
        (told(wav(np.zeros(8), 16000, 4), 32, 8, 64), "its samples have 64 bits"),
        (told(wav(np.zeros(8), 16000, 1), 24, 5), "sampling rate 5"),
        (wav(np.zeros(60_100), 100, 1), "lasts 601 s"),
        ((np.zeros(10, np.int16), 16000), "floats from -1 to 1"),
        ((np.zeros(10), 0), "sampling rate"),
        ((np.zeros((2, 3, 4)), 16000), "expected samples"),
        ((np.full(10, np.nan), 16000), "not finite"),
        ("/nowhere/speech.wav", "No such file"),
    ],
)
def test_bad_audio_is_refused(given: object, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jengine.media.sound_files._soundfile", lambda: None)
    with pytest.raises(RequestError, match=message):
        SpeechProcessor(SPEECH).expanded([5], {"audio": given})


def test_the_token_that_starts_a_decoder_is_put_first() -> None:
    processor, data = SpeechProcessor(SPEECH), {"audio": (sound(0.1, 300), 16000)}
    ids, (span,) = processor.expanded([5, 6], data)
    assert ids == [90, 5, 6]
    assert processor.expanded([90, 5], data)[0] == [90, 5]
    assert span.length == 50
    assert span.end > 10**9, "every token of the request reads it"
