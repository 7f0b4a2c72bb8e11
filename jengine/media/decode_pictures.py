"""Program of a picture-decoding process; see `decoding_process`."""

from __future__ import annotations

import msgspec

from jengine.confined.child import Answer, Part, serve
from jengine.media.decoding_process import LENGTH, Cut, Measure, PictureSizes, divided
from jengine.media.images import opened, plain, size_of
from jengine.media.patch_layout import cut

MOST_BYTES = 2 * 2**30  # memory limit


def answer(message: bytearray) -> tuple[Part, ...]:
    """Answer a Measure with (height, width) of each file, a Cut with the pixels of a picture's
    parts."""
    head, files = divided(message)
    order = msgspec.msgpack.decode(head, type=Measure | Cut)
    if isinstance(order, Cut):
        return cut_of(order, bytes(files))
    sizes, begin = list[tuple[int, int]](), 0
    for name, length in zip(order.names, order.lengths, strict=True):
        sizes.append(size_of(bytes(files[begin : begin + length]), name))
        begin += length
    return packed(PictureSizes(sizes))


def cut_of(order: Cut, file: bytes) -> tuple[Part, ...]:
    """Cut a picture into resized parts; only its size if that differs from the size measured
    before."""
    with opened(file, order.name) as image:
        image = plain(image, order.name)
        size = (image.height, image.width)
        if size != order.size:
            return packed(PictureSizes([size]))
        parts = cut(image, order.parts, order.resample)
    sizes = PictureSizes([size], [(part.shape[0], part.shape[1]) for part in parts])
    return (*packed(sizes), *(part.data.cast("B") for part in parts))


def packed(sizes: PictureSizes) -> tuple[bytes, ...]:
    """Sizes as msgpack, after their length."""
    head = msgspec.msgpack.encode(sizes)
    return LENGTH.pack(len(head)), head


def prepare(job: bytearray) -> tuple[Answer, int]:
    """Called by `serve` with the first message: returns the handler, and the bytes it may
    allocate."""
    return answer, MOST_BYTES


if __name__ == "__main__":
    serve(prepare)
