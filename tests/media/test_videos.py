"""Frames of videos: what is accepted, how they are cut into patches, and what stands for them."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from jengine.config import VisionConfig
from jengine.errors import JengineError
from jengine.media.families import RULES
from jengine.media.patch_layout import MediaItem, PicturePart, item_of
from jengine.media.pictures import picture_of
from jengine.media.processor import MediaProcessor
from jengine.media.videos import Frames, frames_of, size_of_all, video_layout
from jengine.models import registry
from tests.media.tiny_vision import BEGIN, CONFIGS, END, IMAGE, SMALL_PICTURES, VIDEO, picture

FRAMES = np.stack([np.asarray(picture(24, 40, seed)) for seed in range(5)])
SETTINGS = {"size": SMALL_PICTURES}


def vision_of(family: str) -> VisionConfig:
    name, settings = CONFIGS[family]
    config = registry.model_config(
        {"architectures": [f"{name}ForConditionalGeneration"], **settings}
    ).vision
    assert config is not None
    return config


def file_of(frames: np.ndarray, kind: str, **settings: Any) -> bytes:
    first, *others = map(Image.fromarray, frames)
    file = io.BytesIO()
    first.save(file, kind, save_all=True, append_images=others, **settings)
    return file.getvalue()


def pixels_of(frames: Frames) -> np.ndarray:
    size_of_all(frames.pictures, "video 0")
    return np.stack([one.cut([PicturePart()], 3)[0] for one in frames.pictures])


def image_item(picture: np.ndarray, vision: VisionConfig) -> MediaItem:
    layout = RULES["qwen2_vl"](*picture.shape[:2], vision, SETTINGS)
    return item_of(layout, picture_of(picture, "it").cut(layout.parts, 3), vision)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_frames_of_animated_pictures(kind: str, tmp_path: Path) -> None:
    colors = np.array([[[0, 0, 0]], [[255, 0, 0]], [[0, 0, 255]], [[255, 255, 255]]], np.uint8)
    frames = np.broadcast_to(colors[:, :, None], (4, 12, 20, 3))
    lossless = {"lossless": True} if kind == "WEBP" else {}
    data = file_of(frames, kind, duration=[100, 200, 300, 400], **lossless)
    path = tmp_path / "movie"
    path.write_bytes(data)
    opened = Image.open(path)
    for given in (data, path, str(path), opened, (opened, {"duration": 1.0})):
        found = frames_of(given, 7, "video 0")
        assert np.array_equal(pixels_of(found), frames)
        np.testing.assert_allclose(found.seconds, [0, 0.1, 0.3, 0.6])
    assert opened.tell() == 0
    assert frames_of((data, {"fps": 2}), None, "video 0").seconds == (0.0, 0.5, 1.0, 1.5)
    silent = frames_of(file_of(frames, kind, **lossless), 4, "video 0")
    assert silent.seconds == (0.0, 0.25, 0.5, 0.75)


def test_frames_come_as_arrays_or_pictures() -> None:
    wanted = frames_of(FRAMES, None, "video 0")
    assert wanted.seconds == tuple(n / 24 for n in range(5))
    for same in ([*map(picture, [24] * 5, [40] * 5, range(5))], list(FRAMES), (FRAMES, None)):
        found = frames_of(same, None, "video 0")
        assert (
            np.array_equal(pixels_of(found), pixels_of(wanted)) and found.seconds == wanted.seconds
        )
    facts = {"fps": 4.0, "frames_indices": [0, 2, 4, 6, 8]}
    assert frames_of((FRAMES, facts), 1, "video 0").seconds == (0.0, 0.5, 1.0, 1.5, 2.0)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (FRAMES[0], "expected an array"),
        (b"\0\0\0\x18ftypmp42", "no decoder of video files such as MP4"),
        (file_of(FRAMES, "WEBP")[:200], "cannot be decoded"),
        (file_of(np.tile(FRAMES[:, :1, :1], (200, 1, 1, 1)), "GIF"), "1000 frames; expected 768"),
        ([], "0 frames"),
        ([FRAMES[0], FRAMES[1][:8]], "frames of several sizes"),
        ((FRAMES, {"rate": 2}), "no key 'rate'"),
        ((FRAMES, {"fps": 0}), "fps=0"),
        ((FRAMES, {"frames_indices": [1]}), "a whole number for each frame"),
        ((FRAMES, {"do_sample_frames": True}), "not left out here"),
        (FRAMES.astype(np.float32), "dtype float32"),
        (np.zeros((769, 1, 1, 3), np.uint8), "769 frames"),
    ],
)
def test_bad_videos(given: Any, complaint: str) -> None:
    with pytest.raises(JengineError, match=complaint):
        size_of_all(frames_of(given, None, "video 0").pictures, "video 0")


def test_patches_hold_frames_one_after_the_other() -> None:
    vision = vision_of("qwen2_vl")
    frames = frames_of(FRAMES, None, "v")
    layout = video_layout(FRAMES.shape[1:3], frames.seconds, vision, SETTINGS, None)
    cuts = [one for frame in frames.pictures for one in frame.cut(layout.parts, 3)]
    item, single = item_of(layout, cuts, vision), [image_item(one, vision) for one in FRAMES]
    assert layout.grid == (3, *single[0].layout.grid[1:]) and layout.firsts == (0,)
    assert layout.tokens == [VIDEO] * (3 * len(single[0].layout.tokens))
    assert item.values.nbytes == layout.value_bytes(vision)
    count = len(single[0].values)
    values = item.values.reshape(3, count, 3, 2, -1)
    for number, place in enumerate([0, 1, 2, 3, 4, 4]):  # the last frame stands still
        own = single[place].values.reshape(count, 3, -1)
        np.testing.assert_array_equal(values[number // 2, :, :, number % 2], own)


def test_seconds_stand_between_frames_of_qwen3() -> None:
    vision = vision_of("qwen3_vl")
    texts = list[str]()

    def encode(text: str) -> list[int]:
        texts.append(text)
        return [7, 8]

    processor = MediaProcessor(vision, SETTINGS, encode=encode)
    given = {"video": (FRAMES, {"fps": 2.0}), "image": picture(16, 16)}
    ids, spans = processor.expanded([5, BEGIN, VIDEO, END, BEGIN, IMAGE, END, 6], given)
    assert texts == ["<0.2 seconds>", "<1.2 seconds>", "<2.0 seconds>"]
    assert [one.kind for one in spans] == ["video"] * 3 + ["image"]
    assert len({one.key for one in spans}) == 4 and all(one.grid[0] == 1 for one in spans)
    each = [7, 8, BEGIN, *[VIDEO] * spans[0].length, END]
    assert ids[: 1 + 3 * len(each)] == [5, *each * 3], "what was around the placeholder is gone"
    for one in spans:
        token = IMAGE if one.kind == "image" else VIDEO
        assert ids[one.offset : one.end] == [token] * one.length and ids[one.offset - 1] == BEGIN


def test_times_between_frames_of_qwen2_5() -> None:
    processor = MediaProcessor(vision_of("qwen2_5_vl"), SETTINGS)
    _, (span,) = processor.expanded([VIDEO], {"video": FRAMES}, {"fps": 6})
    assert span.interval == pytest.approx(2 / 6 * 4) and span.steps == (3, 3, 5)
    with pytest.raises(JengineError, match=r"mm_items\['video'\]\[0\]"):
        processor.expanded([5], {"video": FRAMES})
    with pytest.raises(JengineError, match=r"mm_items\['video'\]\[0\]"):
        processor.expanded([VIDEO, IMAGE], {"image": picture(16, 16)})


def test_limits_and_models_without_videos() -> None:
    processor = MediaProcessor(vision_of("qwen2_vl"), SETTINGS, {"video": 1})
    with pytest.raises(JengineError, match=r"At most 1 video\(s\)"):
        processor.expanded([VIDEO] * 2, {"video": [FRAMES, FRAMES]})
    vision = replace(vision_of("llava"), video_token=None)
    with pytest.raises(JengineError, match="Give frames as images"):
        MediaProcessor(vision, SETTINGS).expanded([IMAGE], {"video": FRAMES})
