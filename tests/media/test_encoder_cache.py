"""Which images have room on the device, which are encoded, and when their room is free again."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from jengine.errors import RequestError
from jengine.kvcache.hashing import extra_keys
from jengine.media_spans import MediaSpan, end_beside_images, mrope_positions, offset_after
from jengine.request import RUNNING, Request
from jengine.scheduler.encoder_cache import EncoderCache
from tests.scheduler.scheduler_loop import Loop, make_wire


def span(offset: int, steps: tuple[int, int, int], key: str = "a", **more: float) -> MediaSpan:
    grid = steps[0], 2 * steps[1], 2 * steps[2]
    return MediaSpan(offset, int(np.prod(steps)), key, "image", grid, steps, values=b"1234", **more)


def running(*media: MediaSpan, name: str = "r") -> Request:
    length = max(one.end for one in media) + 2
    request = Request(make_wire(length, name, media=list(media)), 1000, 0)
    request.status = RUNNING
    return request


def test_an_image_is_encoded_once_and_shared() -> None:
    cache = EncoderCache(10)
    first, second = running(span(1, (1, 2, 2))), running(span(3, (1, 2, 2)), name="s")
    (placed,) = cache.take(first, 0, version=0)
    (new,) = cache.take_new()
    assert new.values == b"1234" and placed.values == b"" and len(set(new.places.tolist())) == 4
    (again,) = cache.take(second, 0, version=0)
    assert again.rows == placed.rows and cache.take_new() == []
    (other,) = cache.take(running(span(1, (1, 2, 2))), 0, version=1)
    assert other.rows != placed.rows, "other weights make other embeddings"


def test_what_is_computed_makes_room_and_what_is_cached_is_not_encoded() -> None:
    cache = EncoderCache(6)
    first, second = running(span(1, (1, 2, 2))), running(span(1, (1, 2, 2), "b"), name="s")
    cache.take(first, 0, version=0)
    cache.take_new()
    assert not cache.have_room(second, 0)
    first.num_computed = 5
    assert cache.have_room(second, 0)
    (unread,) = cache.take(second, 5, version=0)
    assert unread.rows == b"" and cache.take_new() == [], "a cached prefix needs no embeddings"
    cache.take(second, 0, version=0)
    assert len(cache.take_new()) == 1


def test_a_request_waits_for_room_and_one_without_images_passes_it() -> None:
    loop = Loop(blocks=100, depth=0, encoder_tokens=4, max_num_seqs=4)
    images = [make_wire(20, f"i{n}", media=[span(2, (1, 2, 2), str(n))]) for n in range(2)]
    loop.add(images[0], images[1], make_wire(5, "text"))
    plan = loop.schedule()
    assert len(plan.encode) == 1 and len(plan.new_rows) == 2
    loop.drain()
    loop.assert_truth(*images)
    with pytest.raises(RequestError, match="take 6 tokens; expected at most 4"):
        loop.add(make_wire(20, "large", media=[span(2, (1, 2, 3), "c")]))


def test_a_preempted_request_takes_its_images_again() -> None:
    cache = EncoderCache(4)
    request = running(span(1, (1, 2, 2)))
    cache.take(request, 0, version=0)
    cache.take_new()
    request.num_computed = 5
    cache.take(running(span(0, (1, 2, 2), "b")), 0, version=0)
    cache.take_new()
    cache.reset()
    request.num_computed = 0
    assert cache.have_room(request, 0)
    cache.take(request, 0, version=0)
    assert [one.key for one in cache.take_new()] == ["a"]


def test_positions_within_and_behind_images() -> None:
    spans = [span(2, (1, 2, 3)), span(9, (2, 1, 2))]
    positions = mrope_positions(spans, 15)
    assert positions[0].tolist() == [0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 6, 7, 7, 8, 9]
    assert positions[1].tolist() == [0, 1, 2, 2, 2, 3, 3, 3, 5, 6, 6, 6, 6, 8, 9]
    assert positions[2].tolist() == [0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 7, 6, 7, 8, 9]
    assert offset_after(spans) == 8 - 13 and offset_after([]) == 0
    np.testing.assert_array_equal(mrope_positions(spans, 5), positions[:, :5])


def test_blocks_with_images_are_named_by_them() -> None:
    wire = make_wire(20, "r", media=[span(2, (1, 2, 3), "c")])
    assert extra_keys(wire, 0, 4) == [("mm", "c", "2")]
    assert extra_keys(wire, 1, 4) == [("mm", "c", "-2")]
    assert extra_keys(wire, 2, 4) == []


def test_a_chunk_ends_beside_what_must_run_whole() -> None:
    spans = [span(2, (1, 2, 3)), span(10, (1, 2, 3), "b")]
    whole = [msgspec.structs.replace(one, is_whole=True) for one in spans]
    assert end_beside_images(spans, 0, 5, 20) == 5
    assert end_beside_images(whole, 0, 5, 20) == 2, "before the image"
    assert end_beside_images(whole, 2, 5, 20) == 8, "the budget has room for all of it"
    assert end_beside_images(whole, 2, 5, 7) == 2, "it waits"
    assert end_beside_images(whole, 4, 5, 7) == 4, "its first tokens are cached"
    assert [end_beside_images(whole, 0, end, 20) for end in (2, 8, 10, 16)] == [2, 8, 10, 16]


def test_an_image_that_runs_whole_is_not_cut() -> None:
    whole = msgspec.structs.replace(span(6, (1, 2, 4)), is_whole=True)
    loop = Loop(blocks=100, depth=0, encoder_tokens=20, max_num_seqs=4, max_num_batched_tokens=8)
    wire = make_wire(30, "w", media=[whole])
    loop.add(wire, make_wire(20, "text"))
    chunks = list[tuple[int, int]]()
    while (plan := loop.schedule()) is not None:
        chunks += [(one.start, one.length) for one in plan.entries if one.row == 0]
        loop.commit()
    assert (6, 8) in chunks[:3], chunks
    loop.assert_truth(wire)
    with pytest.raises(RequestError, match="must run in one step; a step takes at most 8"):
        longer = msgspec.structs.replace(span(6, (1, 1, 9)), is_whole=True)
        loop.add(make_wire(30, "x", media=[longer]))
