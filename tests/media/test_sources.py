"""URLs of images: what they may lead to, and that nothing else is asked."""

from __future__ import annotations

import base64
import io
import os
import signal
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from PIL import Image

from jengine.confined import errand as errands
from jengine.errors import CapacityError, RequestError
from jengine.media import images
from jengine.media import sources as sources_module
from jengine.media.decoding_process import Cut, Decoders
from jengine.media.downloads import MOST_LOOKUPS, Lookups
from jengine.media.images import decoded, pixels_of
from jengine.media.patch_layout import PicturePart
from jengine.media.sources import MediaSources, is_public
from tests.server.listening import until


def never(*_: Any) -> Any:
    raise AssertionError("a socket was opened, or a name was looked up")


CLOSED = MediaSources(resolve=never, connect=never)
LISTED = MediaSources(("a.example", "b.example"), resolve=never, connect=never)


# One frame, whose blocks are cut off within a number.
GIF = bytes.fromhex(
    "474946383761090007008100006300000000000000000000002c000000000900070000080f0001081c48b0a0c1"
    "8308132a4418100021f90401000001002c0000000009"
)


def file_of(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def test_data_urls() -> None:
    data = file_of(Image.new("RGB", (3, 2), (1, 2, 3)))
    url = "data:image/png;base64," + base64.b64encode(data).decode()
    assert CLOSED.content(url, "image") == data


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("data:image/png,abc", "expected data:image"),
        ("data:image/png;base64,a!", "no valid base64"),
        ("ftp://a.example/x.png", "expected data:, http:, https: or file:"),
        ("x.png", "expected data:"),
        ("file:///etc/passwd", "without `--allowed-local-media-path`"),
        ("http://c.example/x.png", "one of the allowed domains: a.example, b.example"),
        ("http://127.0.0.1/x.png", "allowed domains"),
        ("http://a.example@c.example/x.png", "no plain host name"),
        ("http://a.example:x/x.png", "no plain host name"),
        ("http://a.example\\@c.example/", "backslash"),
        ("http://a.example/ x", "a space"),
        ("http://[a.example/", "cannot be read"),
        ("file:///tmp/a%00.png", "a control character"),
    ],
)
def test_what_is_refused_before_a_socket_is_opened(url: str, complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint):
        LISTED.content(url, "image")


def test_data_urls_that_are_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jengine.media.sources.MOST_BYTES", 8)
    with pytest.raises(RequestError, match="more than 8 bytes"):
        CLOSED.content("data:image/png;base64," + "AAAA" * 10, "image")


@pytest.mark.parametrize(
    "address",
    ["10.0.0.7", "127.0.0.1", "169.254.169.254", "::1", "fc00::1", "fe80::1%eth0", "224.0.0.1",
     "ff02::1", "ff0e::1", "::ffff:10.0.0.7", "::127.0.0.1", "64:ff9b::10.0.0.7",
     "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2002:7f00:1::", "2002:a9fe:a9fe::1",
     "2001:0:5db8:d822:0:0:80ff:fffe"],
)  # fmt: skip
def test_hosts_in_private_networks_are_not_asked(address: str) -> None:
    sources = MediaSources(("a.example",), resolve=lambda *_: [address], connect=never)
    with pytest.raises(RequestError, match="private network"):
        sources.content("http://a.example/x.png", "image")


def answering(answer: bytes) -> tuple[MediaSources, list[bytes]]:
    """Sources whose only host gives this answer, and what it was asked."""
    asked: list[bytes] = []

    def connect(address: str, port: int, seconds: float) -> socket.socket:
        assert (address, port) == ("93.184.216.34", 80) and 0 < seconds <= 10
        ours, theirs = socket.socketpair()

        def serve() -> None:
            asked.append(theirs.recv(4096))
            theirs.sendall(answer)
            theirs.close()

        threading.Thread(target=serve, daemon=True).start()
        return ours

    return MediaSources(("a.example",), None, lambda *_: ["93.184.216.34"], connect), asked


def test_a_host_of_the_list_is_asked_at_the_address_that_was_checked() -> None:
    sources, asked = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc")
    assert sources.content("http://a.example/x.png?y=1", "image") == b"abc"
    assert asked[0].startswith(b"GET /x.png?y=1 HTTP/1.1\r\nHost: a.example")
    sources, asked = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    assert sources.content("http://a.example/é%20.png?ü=1", "image") == b""
    assert asked[0].startswith(b"GET /%C3%A9%20.png?%C3%BC=1 HTTP/1.1")
    sources, _ = answering(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\n\r\n")
    with pytest.raises(RequestError, match="answered 302"):
        sources.content("http://a.example/x.png", "image")


@pytest.mark.parametrize(
    "address", ["93.184.216.34", "2606:2800:220:1::1", "64:ff9b::5db8:d822", "2002:5db8:d822::1"]
)
def test_addresses_that_anyone_may_reach(address: str) -> None:
    assert is_public(address)


def dripping(address: str, port: int, seconds: float) -> socket.socket:
    """A host that begins to answer and goes on byte by byte, for ever."""
    ours, theirs = socket.socketpair()

    def drip() -> None:
        with theirs:
            theirs.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            while True:
                try:
                    theirs.sendall(b"x")
                except OSError:
                    return
                time.sleep(0.02)

    threading.Thread(target=drip, daemon=True).start()
    return ours


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_one_deadline_is_over_all_of_a_download(scheme: str) -> None:
    sources = MediaSources(("a.example",), None, lambda *_: ["93.184.216.34"], dripping, 0.3)
    if scheme == "https":  # the handshake gets no answer
        silent = socket.socketpair()
        sources = replace(sources, connect=lambda *_: silent[0])
    with pytest.raises(RequestError, match=r"did not give the image within 0.3 seconds"):
        sources.content(f"{scheme}://a.example/x.png", "image")


def test_a_lookup_that_does_not_end_holds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    held = threading.Event()
    monkeypatch.setattr(sources_module, "LOOKUPS", Lookups())
    slow = MediaSources(("a.example",), None, lambda *_: [str(held.wait(60))], never, 0.01)
    for _ in range(MOST_LOOKUPS):
        with pytest.raises(RequestError, match=r"within 0.01 seconds"):
            slow.content("http://a.example/x.png", "image")
    with pytest.raises(CapacityError, match="16 names of hosts are being looked up"):
        slow.content("http://a.example/x.png", "image")
    held.set()


def test_a_client_that_leaves_ends_its_download() -> None:
    errand = errands.Errand(60)
    token = errands.current.set(errand)
    sources = MediaSources(("a.example",), None, lambda *_: ["93.184.216.34"], dripping, 60)
    threading.Timer(0.1, errand.cancel).start()
    try:
        with pytest.raises(errands.GivenUp):
            sources.content("http://a.example/x.png", "image")
    finally:
        errands.current.reset(token)


def test_only_regular_files_are_read_and_no_links(tmp_path: Path) -> None:
    root = tmp_path / "in"
    (root / "folder").mkdir(parents=True)
    (root / "folder" / "a.png").write_bytes(b"abc")
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "link").symlink_to(root)
    (root / "link.png").symlink_to(tmp_path / "secret")
    (root / "inner.png").symlink_to(root / "folder" / "a.png")
    (root / "way").symlink_to(root / "folder")
    os.mkfifo(root / "fifo")
    sources = MediaSources(folder=tmp_path / "link", resolve=never, connect=never)
    for start in (tmp_path / "link", root):
        assert sources.content(f"file://{start}/folder/a.png", "image") == b"abc"
    for name, complaint in (
        ("link.png", "expected a file that is no link"),
        ("inner.png", "expected a file that is no link"),
        ("way/a.png", "expected a file that is no link"),
        ("fifo", "is no regular file"),
        ("folder", "is no regular file"),
        ("missing", "No such file"),
        ("folder/a.png/b", "Not a directory"),
        ("", "not a subpath"),
    ):
        with pytest.raises(RequestError, match=complaint):
            sources.content(f"file://{root}/{name}", "image")


def test_files_of_one_folder(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in" / "a b.png", tmp_path / "c.png"
    inside.parent.mkdir()
    for file in (inside, outside):
        file.write_bytes(b"abc")
    sources = MediaSources(folder=inside.parent, resolve=never, connect=never)
    assert sources.content(f"file://{inside.parent}/a%20b.png", "image") == b"abc"
    for path in (outside, f"{inside.parent}/../c.png", f"{inside.parent}/%2e%2e/c.png"):
        with pytest.raises(RequestError, match="not a subpath"):
            sources.content(f"file://{path}", "image")


def test_hostile_files(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    whole = file_of(picture)
    for broken in (
        whole[:40],
        whole[:-30],
        b"\x89PNG\r\n\x1a\n" + b"\0" * 100,
        b"",
        b"GIF89a",
        GIF,
    ):
        with pytest.raises(RequestError, match=r"cannot be decoded|no picture that can be read"):
            decoded(broken, "image")
    frames = [Image.new("RGB", (4, 4), (n, 0, 0)) for n in range(3)]
    moving = file_of(frames[0], "GIF", save_all=True, append_images=frames[1:])
    with pytest.raises(RequestError, match="is animated: it has 3 frames"):
        decoded(moving, "image")
    monkeypatch.setattr(images, "MOST_PIXELS", 15)
    with pytest.raises(RequestError, match="4 x 4 pixels; expected 1 to 15"):
        decoded(whole, "image")


def test_colors_of_every_mode() -> None:
    picture = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    np.testing.assert_array_equal(decoded(file_of(picture), "image"), np.asarray(picture))
    clear = picture.convert("RGBA")
    clear.putalpha(0)
    assert (decoded(file_of(clear), "image") == 255).all(), "what is clear is white"
    assert pixels_of(picture.convert("L")).shape == (4, 4, 3)
    gray = np.asarray(picture.convert("L"))
    np.testing.assert_array_equal(pixels_of(gray)[..., 2], gray)


def test_processes_decode_for_strangers_and_are_replaced_when_they_end() -> None:
    picture = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    file, decoders = file_of(picture), Decoders(seconds=60)
    order = Cut("image", (4, 4), (PicturePart(), PicturePart((2, 6))), 3)
    assert decoders.sizes(["image", "other"], [file, file_of(picture.resize((5, 3)))]) == [
        (4, 4), (3, 5),
    ]  # fmt: skip
    size, (whole, small) = decoders.cut(file, order)
    assert size == (4, 4) and small.shape == (2, 6, 3)
    np.testing.assert_array_equal(whole, np.asarray(picture))
    np.testing.assert_array_equal(small, np.asarray(picture.resize((6, 2), 3)))
    with pytest.raises(RequestError, match=r"^other is no picture that can be read"):
        decoders.sizes(["image", "other"], [file, b"no picture"])
    (first,) = decoders.pool.pids
    os.kill(first, signal.SIGKILL)
    until(lambda: not psutil.pid_exists(first))
    assert decoders.cut(file, order)[0] == (4, 4)
    (second,), decoders.pool._seconds = decoders.pool.pids, 0.1
    os.kill(second, signal.SIGSTOP)
    with pytest.raises(RequestError, match=r"^image took longer than 0.1 seconds"):
        decoders.cut(file, order)
    assert not psutil.pid_exists(second), "it was ended"
