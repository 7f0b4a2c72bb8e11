"""What media of one request may take, and that it is known before anything is decoded."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jengine.confined import errand as errands
from jengine.errors import CapacityError, ContextOverflow, RequestError
from jengine.media import budget, items, pictures
from jengine.media.budget import Budget
from jengine.media.decoding_process import Cut
from jengine.media.families import RULES
from jengine.media.items import RequestFiles, Room
from jengine.media.pictures import PictureFile
from jengine.media.processor import MediaProcessor
from jengine.media.scaling import Scaling
from jengine.media.sources import MediaSources
from tests.media.test_sources import file_of
from tests.media.test_videos import vision_of
from tests.media.tiny_vision import IMAGE, picture

SMALL = picture(24, 40)
SETTINGS: dict[str, dict[str, Any]] = {
    "qwen2_vl": {"min_pixels": 64, "max_pixels": 4096},
    "llava": {"size": {"shortest_edge": 20}, "crop_size": {"height": 16, "width": 16}},
    "internvl": {"size": {"height": 16, "width": 16}, "max_patches": 4},
    "gemma3": {"size": {"height": 16, "width": 16}},
    "gemma4": {"max_soft_tokens": 140},
}


class Heads:
    """Decoders of files that say any size, and that nothing may be decoded of."""

    def __init__(self, size: tuple[int, int], found: tuple[int, int] | None = None) -> None:
        self.size, self.found, self.cuts = size, found, 0

    def sizes(self, names: Sequence[str], files: Sequence[bytes]) -> list[tuple[int, int]]:
        return [self.size] * len(files)

    def cut(self, data: bytes, order: Cut) -> tuple[tuple[int, int], list[np.ndarray]]:
        self.cuts += 1
        size = self.found or order.size
        shape = order.parts[0].size or size
        return size, [np.zeros((*shape, 3), np.uint8)] if size == order.size else []


def processor(family: str = "qwen2_vl", **more: Any) -> MediaProcessor:
    vision = vision_of(family)
    return MediaProcessor(replace(vision, image_token=IMAGE), SETTINGS[family], **more)


def expand(ours: MediaProcessor, given: Any, options: Any = None) -> Any:
    given = given if isinstance(given, list) else [given]
    return ours.expanded([ours.vision.placeholder] * len(given), {"image": given}, options)


@pytest.mark.parametrize(
    ("family", "options", "complaint"),
    [
        ("qwen2_vl", {"min_pixels": 60_000_000, "max_pixels": 60_000_000}, "raises max_pixels"),
        ("qwen2_vl", {"min_pixels": 60_000_000}, "min_pixels=60000000 is more than max_pixels"),
        ("qwen2_vl", {"max_pixels": 4097}, "raises max_pixels to 4097.*what the engine has, 4096"),
        ("llava", {"size": {"shortest_edge": 4096}}, "raises size"),
        ("llava", {"crop_size": 4096}, "raises crop_size"),
        ("internvl", {"max_patches": 5}, "raises max_patches to 5"),
        ("gemma3", {"size": {"height": 4096, "width": 4096}}, "raises size"),
        ("gemma4", {"max_soft_tokens": 280}, "raises max_soft_tokens to 280"),
        (
            "gemma3",
            {"do_pan_and_scan": True, "pan_and_scan_max_num_crops": 5},
            "raises pan_and_scan_max_num_crops to 5",
        ),
    ],
)
def test_a_request_may_only_lower_limits(
    family: str, options: Any, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "cut", lambda *_: pytest.fail("it was decoded"))
    with pytest.raises(RequestError, match=complaint):
        expand(processor(family), SMALL, options)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("qwen2_vl", {"max_pixels": 1024}),
        ("qwen2_vl", {"min_pixels": 4096}),
        ("llava", {"size": {"shortest_edge": 16}}),
        ("internvl", {"max_patches": 1}),
        ("gemma4", {"max_soft_tokens": 70}),
    ],
)
def test_a_request_may_lower_limits(family: str, options: Any) -> None:
    assert expand(processor(family), SMALL, options)[1] != expand(processor(family), SMALL)[1]


@pytest.mark.parametrize("family", RULES)
def test_tokens_and_bytes_are_counted_before_anything_is_decoded(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "cut", lambda *_: pytest.fail("it was decoded"))
    for room, complaint in (
        (Room(context=5), "maximum context length is 5 tokens"),
        (Room(value_bytes=100), "the patches of the images of the request take"),
    ):
        with pytest.raises(RequestError, match=complaint):
            expand(processor(family, room=room), SMALL)


def test_what_a_request_may_take_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    heads, ours = Heads((8000, 8000)), processor()
    files: list[Any] = [PictureFile(b"x", f"image {n}", heads) for n in range(6)]  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=r"pixels of the images .* take 1152000000 bytes"):
        expand(ours, files)
    assert heads.cuts == 0
    expand(ours, files[:5])
    assert heads.cuts == 1, "the same file is decoded once"
    monkeypatch.setattr(items, "FILE_BYTES", 100)
    several = RequestFiles(MediaSources(), ours.items.decoders)
    url = "data:image/png;base64," + "A" * 80
    assert isinstance(several.opened(url, "it"), PictureFile)
    with pytest.raises(RequestError, match="files of the images of the request take 120 bytes"):
        several.opened([url], "it")


def test_a_head_that_says_another_size() -> None:
    for found, is_small in (((16, 24), True), ((4000, 8), False)):
        heads: Any = Heads((24, 16), found)
        ours = processor(room=Room(context=200))
        if is_small:
            ids, (span,) = expand(ours, PictureFile(b"x", "it", heads))
            assert span.steps == (1, 2, 3) and len(ids) == 6
        else:
            with pytest.raises(RequestError, match="at most 200 times"):
                expand(ours, PictureFile(b"x", "it", heads))
    liar: Any = Heads((24, 16), (16, 24))
    liar.cut = lambda data, order: ((order.size[1], order.size[0]), [])
    with pytest.raises(RequestError, match="its size does not stay the same"):
        expand(processor(), PictureFile(b"x", "it", liar))


def test_how_many_images_a_prompt_may_have_follows_from_the_context() -> None:
    for context, most in ((3, 3), (100_000, 999)):
        ours = processor(room=Room(context=context))
        ours.check_count(most)
        with pytest.raises(RequestError, match=rf"At most {most} image\(s\)"):
            ours.check_count(most + 1)


def test_a_file_is_one_item_however_it_comes() -> None:
    file = file_of(SMALL)
    _, (own,) = expand(processor(), file)
    _, (same,) = expand(processor(), SMALL)
    assert own.values == same.values
    ours = processor()
    _, (theirs,) = expand(ours, PictureFile(file, "image 0", ours.items.decoders))
    assert (theirs.values, theirs.key) == (own.values, own.key)


@pytest.mark.parametrize("how", [{}, {"do_rescale": False}, {"do_normalize": False}])
def test_numbers_of_pixels_are_those_of_float64(how: dict[str, bool]) -> None:
    scaling = Scaling(**how)  # type: ignore[arg-type]
    patches = np.random.default_rng(0).integers(0, 256, (1500, 3, 49)).astype(np.uint8)
    wanted = patches.astype(np.float32)
    if scaling.do_rescale:
        wanted = (patches.astype(np.float64) * scaling.rescale_factor).astype(np.float32)
    if scaling.do_normalize:
        mean, std = (
            np.array(x, np.float32)[:, None] for x in (scaling.image_mean, scaling.image_std)
        )
        wanted = (wanted - mean) / std
    found = scaling.applied(patches)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    "options",
    [
        {"image_mean": 1e308},
        {"image_std": [0.5, 0.5, -1e308]},
        {"image_mean": [0.5, 10**400, 0.5]},
        {"rescale_factor": 10**400},
        {"image_std": [1.0, 1e-300, 1.0]},
        {"rescale_factor": 1e38},
        {"image_mean": 3e38, "image_std": 1e-3},
    ],
)
def test_means_and_deviations_are_within_float32(options: Any) -> None:
    with pytest.raises(RequestError, match="beyond those of float32"):
        expand(processor(), SMALL, options)


def test_who_asks_for_memory_waits_until_others_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    shared, got = Budget(100), threading.Event()
    with shared.room_for(60):

        def other() -> None:
            with shared.room_for(50):
                got.set()

        waiting = threading.Thread(target=other)
        waiting.start()
        monkeypatch.setattr(budget, "PATIENCE", 0.01)
        with pytest.raises(CapacityError, match="take 60 bytes of 100, and this one needs 41"):
            shared.room_for(41).__enter__()
        token = errands.current.set(errands.Errand(0.01))
        with pytest.raises(errands.GivenUp):
            shared.room_for(41).__enter__()
        errands.current.reset(token)
        assert not got.is_set()
    waiting.join()
    assert got.is_set() and shared.taken == 0
    with shared.room_for(1000):
        assert shared.taken == 100, "what is larger than all has all"


def test_prompts_that_never_fit_are_told_so() -> None:
    with pytest.raises(ContextOverflow, match=r"contains \d+ input tokens"):
        expand(processor(room=Room(context=50)), [SMALL] * 40)
