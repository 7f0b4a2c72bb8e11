"""Images of prompts: size, cache key, and parts.

The caller's own images are arrays or images in memory, or files read here; untrusted files are
decoded in other processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from jengine.media.decoding_process import Cut, Decoders
from jengine.media.images import check_size, file_bytes, opened, pixels_of, plain, size_of
from jengine.media.patch_layout import PicturePart, cut


class Picture(Protocol):
    """One image, or one frame of a video."""

    @property
    def size(self) -> tuple[int, int]:
        """(height, width), known before decoding."""
        ...

    @property
    def cost(self) -> int:
        """Bytes that decoding reserves in the shared budget."""
        ...

    def content(self) -> tuple[str, bytes | memoryview]:
        """Content that determines the pixels, with its kind, for hashing."""
        ...

    def cut(self, parts: Sequence[PicturePart], resample: int) -> list[np.ndarray]:
        """Parts as u8[rows, columns, 3]; none if the size turns out different, in which case `size`
        is updated."""
        ...


class OwnPicture:
    """An image in memory; pixels are made on demand."""

    cost = 0

    def __init__(self, given: Any, what: str) -> None:
        if isinstance(given, Image.Image):
            check_size(given, what)
            self.size = (given.height, given.width)
        else:
            given = pixels_of(given, what)
            self.size = given.shape[:2]
        self._given, self._what = given, what

    def content(self) -> tuple[str, bytes | memoryview]:
        pixels = pixels_of(self._given, self._what)
        return "pixels", pixels.data.cast("B")

    def cut(self, parts: Sequence[PicturePart], resample: int) -> list[np.ndarray]:
        return cut(Image.fromarray(pixels_of(self._given, self._what)), parts, resample)


class PictureFile:
    """An image file. `decoders`: processes that decode an untrusted file; None: decoded here."""

    def __init__(self, data: bytes, what: str, decoders: Decoders | None = None) -> None:
        self.data, self.what, self.decoders = data, what, decoders
        self.size = size_of(data, what) if decoders is None else (0, 0)  # until `measure`

    @property
    def cost(self) -> int:
        return 0 if self.decoders is None else 3 * prod(self.size)

    def content(self) -> tuple[str, bytes | memoryview]:
        return "file", self.data

    def cut(self, parts: Sequence[PicturePart], resample: int) -> list[np.ndarray]:
        if self.decoders is not None:
            order = Cut(self.what, self.size, tuple(parts), resample)
            self.size, found = self.decoders.cut(self.data, order)
            return found
        with opened(self.data, self.what) as image:
            image = plain(image, self.what)
            is_other, self.size = image.size[::-1] != self.size, image.size[::-1]
            return [] if is_other else cut(image, parts, resample)


def picture_of(given: Any, what: str) -> Picture:
    """An image as users give it."""
    if isinstance(given, PictureFile):
        return given
    if isinstance(given, (str, Path)):
        return PictureFile(file_bytes(Path(given), what), what)
    if isinstance(given, (bytes, bytearray, memoryview)):
        return PictureFile(bytes(given), what)
    return OwnPicture(given, what)


def measure(pictures: Sequence[Picture]) -> None:
    """Read sizes of untrusted files, in one message to a decoder."""
    files = [one for one in pictures if isinstance(one, PictureFile) and one.decoders is not None]
    if files and (decoders := files[0].decoders) is not None:
        sizes = decoders.sizes([one.what for one in files], [one.data for one in files])
        for one, size in zip(files, sizes, strict=True):
            one.size = size


def digest(pictures: Sequence[Picture], how: bytes) -> str:
    """Cache key of images processed in one way."""
    found = sha256(how)
    for one in pictures:
        kind, content = one.content()
        found.update(f"{kind} {one.size} {len(content)} ".encode())
        found.update(content)
    return found.hexdigest()
