"""A search for files that cost more than their request: pictures and sounds, broken by format.

    python -m tests.media.search --minutes 60 --seed 1 --report found.json

Files are cut off, changed at random or in their heads, and made to swell. Each must be read or be
refused with a RequestError by a process that stays within its limits, and this process must not
grow by them. Prints one line of JSON; ends with status 1 where a file was kept that broke this.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import os
import struct
import sys
import time
import wave
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from PIL import Image

from jengine.errors import RequestError
from jengine.media import decode_pictures, decode_sounds
from jengine.media.items import Room
from jengine.media.pictures import PictureFile
from jengine.media.processor import MediaProcessor
from jengine.media.sounds import SoundDecoders
from tests.media.test_videos import vision_of

Random = np.random.Generator
MIB = 2**20
SLACK = 300 * MIB  # what a process may have beyond its limit
EXTREMES = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF)
PICTURES = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
SIGNATURE = b"\x89PNG\r\n\x1a\n"


def picture(kind: str, random: Random) -> bytes:
    """A whole file."""
    shape = (*random.integers(1, 40, 2), 3)
    image = Image.fromarray(random.integers(0, 256, shape).astype(np.uint8))
    file, mode = io.BytesIO(), random.choice(["RGB", "L", "P", "RGBA", "1"])
    image.convert(mode if kind in ("PNG", "TIFF") else "RGB").save(file, kind)
    return file.getvalue()


def movie(random: Random) -> bytes:
    """A file of several frames."""
    frames = [Image.new("RGB", (9, 7), (int(n), 0, 0)) for n in random.integers(0, 256, 5)]
    file = io.BytesIO()
    frames[0].save(
        file, str(random.choice(["GIF", "WEBP", "PNG"])), save_all=True, append_images=frames[1:]
    )
    return file.getvalue()


def png(*chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG of chunks whose checksums are right."""
    found = [SIGNATURE]
    for name, data in chunks:
        sum_of = struct.pack(">I", zlib.crc32(name + data))
        found.append(struct.pack(">I", len(data)) + name + data + sum_of)
    return b"".join(found)


def head(width: int, height: int, depth: int = 8, color: int = 2) -> tuple[bytes, bytes]:
    """The first chunk of a PNG."""
    return b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)


@cache
def swollen(size: int) -> bytes:
    """So many zeros, compressed."""
    return zlib.compress(bytes(size), 9)


def picture_bomb(random: Random) -> bytes:
    """A small file that says, or holds, something large."""
    side = int(random.choice([9_000, 13_000, 60_000, 2**31 - 1]))
    end, pixels = (b"IEND", b""), (b"IDAT", swollen(8 * MIB))
    bombs: list[Callable[[], bytes]] = [
        lambda: png(head(side, side), pixels, end),
        lambda: png(head(side, side, 1, 0), (b"IDAT", swollen(24 * MIB)), end),
        lambda: png(head(2**31 - 1, 1), pixels, end),
        lambda: png(head(3, 3), (b"iCCP", b"x\0\0" + swollen(64 * MIB)), pixels, end),
        lambda: png(head(3, 3), *[(b"zTXt", b"x\0\0" + swollen(8 * MIB))] * 9, pixels, end),
        lambda: png(head(3, 3), (b"IDAT", swollen(64 * MIB)), end),
        lambda: b"P6 %d %d 255\n" % (side, side) + bytes(100),
        lambda: b"BM" + struct.pack("<IIIIiiHHIIiiII", 0, 0, 54, 40, side, 9000, 1, 24, *[0] * 6),
        lambda: b"GIF89a" + struct.pack("<HHBBB", 65535, 65535, 0, 0, 0)
        + b",\0\0\0\0\xff\xff\xff\xff\0\x02\x00" * 3000 + b";",
        lambda: b"II*\0\x08\0\0\0" + struct.pack("<H", 1)
        + struct.pack("<HHII", 256, 4, 1, side) + struct.pack("<I", 8),
    ]  # fmt: skip
    return bombs[int(random.integers(len(bombs)))]()


def sound(random: Random) -> bytes:
    """A whole WAV file."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(int(random.integers(1, 9)))
        out.setsampwidth(int(random.integers(1, 5)))
        out.setframerate(int(random.choice([100, 8000, 16000, 40961, 44100, 768000])))
        out.writeframes(random.bytes(int(random.integers(0, 5000))))
    return file.getvalue()


def other_sound(random: Random) -> bytes:
    """A whole file of another format, by soundfile."""
    library, file = importlib.import_module("soundfile"), io.BytesIO()
    samples = random.uniform(-1, 1, (int(random.integers(0, 3000)), int(random.integers(1, 9))))
    library.write(file, samples, 16000, format=str(random.choice(["FLAC", "OGG", "AIFF", "AU"])))
    return file.getvalue()


def sound_bomb(random: Random) -> bytes:
    """A WAV file of other numbers than its length allows."""
    channels, rate, bits = (int(random.choice(EXTREMES)) for _ in range(3))
    form = struct.pack("<HHIIHH", 1, channels & 0xFFFF, rate, 0, 0, bits & 0xFFFF)
    size = int(random.choice(EXTREMES))
    data = bytes(int(random.choice([0, 1, 7, 4 * MIB])))
    body = b"WAVEfmt " + struct.pack("<I", 16) + form + b"data" + struct.pack("<I", size) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


def cut_off(file: bytes, random: Random) -> bytes:
    """The beginning of a file."""
    return file[: int(random.integers(0, len(file) + 1))]


def changed(file: bytes, random: Random) -> bytes:
    """A file with other bytes at a few places."""
    found = np.frombuffer(file, np.uint8).copy()
    places = random.integers(0, max(len(found), 1), random.integers(1, 8))
    found[places[places < len(found)]] = random.integers(0, 256)
    return found.tobytes()


def lying(file: bytes, random: Random) -> bytes:
    """A file whose head says an extreme number somewhere; checksums of a PNG are made right."""
    size, order = int(random.choice([1, 2, 4])), random.choice(["little", "big"])
    value = int(random.choice(EXTREMES)) & (256**size - 1)
    place = int(random.integers(0, min(len(file), 120) or 1))
    found = file[:place] + value.to_bytes(size, order) + file[place + size :]  # type: ignore[arg-type]
    return with_checksums(found) if file.startswith(SIGNATURE) else found


def with_checksums(file: bytes) -> bytes:
    """A PNG whose chunks have right checksums, as far as there are chunks."""
    found, place = bytearray(file), len(SIGNATURE)
    while place + 12 <= len(found):
        (length,) = struct.unpack_from(">I", found, place)
        end = place + 8 + length
        if end + 4 > len(found):
            break
        struct.pack_into(">I", found, end, zlib.crc32(found[place + 4 : end]))
        place = end + 4
    return bytes(found)


def longer(file: bytes, random: Random) -> bytes:
    """A file with itself, or with noise, behind it."""
    return file + (file if random.integers(2) else random.bytes(500))


CHANGES = (cut_off, changed, lying, longer)


@dataclass
class Search:
    """What was tried, and what became of it."""

    seed: int
    tried: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    broken: list[dict[str, str]] = field(default_factory=list)
    last_ended: dict[str, str] = field(default_factory=dict)  # the last file of these
    slowest: float = 0.0
    child_peak: int = 0
    given_up: Counter[str] = field(default_factory=Counter)  # whose process was ended, or ended

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        room = Room(context=4096, value_bytes=32 * MIB)
        self.images = MediaProcessor(vision_of("qwen2_vl"), {"max_pixels": 4096}, room=room)
        self.sounds = SoundDecoders()
        self.began = psutil.Process().memory_info().rss

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Files without end, and what they are."""
        random, has_soundfile = self.random, find_spec("soundfile") is not None
        while True:
            for kind in PICTURES:
                yield kind, self.change(picture(kind, random))
            yield "movie", self.change(movie(random))
            yield "picture bomb", picture_bomb(random)
            yield "WAV", self.change(sound(random))
            if has_soundfile:
                yield "other sound", self.change(other_sound(random))
            yield "sound bomb", sound_bomb(random)

    def change(self, file: bytes) -> bytes:
        """A file in another way than it was."""
        for _ in range(int(self.random.integers(1, 3))):
            file = CHANGES[int(self.random.integers(len(CHANGES)))](file, self.random)
        return file

    def read(self, kind: str, file: bytes) -> None:
        """What a request does with a file."""
        if kind in ("WAV", "other sound", "sound bomb"):
            self.sounds.samples(file, 16000, "file")
            return
        given = PictureFile(file, "image 0", self.images.items.decoders)
        self.images.expanded([self.images.vision.placeholder], {"image": given})

    def try_one(self, kind: str, file: bytes) -> None:
        """Read a file, and note how that ended."""
        began = time.monotonic()
        self.tried[kind] += 1
        try:
            self.read(kind, file)
        except RequestError:
            self.refused[kind] += 1
        except Exception as error:
            self.keep(kind, file, f"{type(error).__name__}: {error}")
        self.slowest = max(self.slowest, time.monotonic() - began)

    def measure(self, kind: str, file: bytes) -> None:
        """Note what processes have taken; keep a file that made one too large."""
        grown = psutil.Process().memory_info().rss - self.began
        if grown > SLACK:
            self.keep(kind, file, f"this process has grown by {grown} bytes")
        pools = ((self.images.items.decoders.pool, decode_pictures.MOST_BYTES),
                 (self.sounds.pool, decode_sounds.MOST_BYTES))  # fmt: skip
        for pool, most in pools:
            for pid in pool.pids:
                peak = peak_of(pid)
                self.child_peak = max(self.child_peak, peak)
                if peak > most + SLACK:
                    self.keep(kind, file, f"a process took {peak} bytes")
        ended = sum(pool.given_up for pool, _ in pools) - self.given_up.total()
        if ended:
            self.given_up[kind] += ended
            self.last_ended[kind] = file[:MIB].hex()

    def keep(self, kind: str, file: bytes, why: str) -> None:
        """Note a file that broke a rule."""
        self.broken.append({"kind": kind, "why": why, "file": file[:MIB].hex()})

    def run(self, goes_on: Callable[[int], bool]) -> None:
        """Try files while that is asked for."""
        for number, (kind, file) in enumerate(self.files()):
            if not goes_on(number) or len(self.broken) > 20:
                return
            self.try_one(kind, file)
            self.measure(kind, file)

    @property
    def report(self) -> dict[str, Any]:
        """All of it, for JSON."""
        grown = psutil.Process().memory_info().rss - self.began
        return {
            "seed": self.seed, "tried": dict(self.tried), "refused": dict(self.refused),
            "given_up": dict(self.given_up), "last_ended": self.last_ended,
            "slowest_seconds": round(self.slowest, 2),
            "child_peak_mib": self.child_peak // MIB, "grown_mib": grown // MIB,
            "broken": self.broken,
        }  # fmt: skip


def peak_of(pid: int) -> int:
    """The most memory that a process has had; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    found = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(found[0]) * 1024 if found else 0


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.media.search", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    parser.add_argument("--report", type=Path)
    asked = parser.parse_args()
    search, until = Search(asked.seed), time.monotonic() + 60 * asked.minutes
    search.run(lambda _: time.monotonic() < until)
    told = json.dumps(search.report)
    if asked.report is not None:
        asked.report.write_text(told + "\n")
    print(told if len(told) < 20_000 else told[:20_000])
    return int(bool(search.broken))


if __name__ == "__main__":
    sys.exit(main())
