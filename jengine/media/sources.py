"""Allowed sources of media URLs: data URLs, files of one folder, allowed hosts.

In: a request's URL. Out: its contents, or a RequestError before any disallowed socket is opened.
"""

from __future__ import annotations

import base64
import binascii
import http.client
import os
import stat
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from pathlib import Path
from urllib.parse import SplitResult, quote, unquote, urlsplit

from jengine.errors import RequestError
from jengine.media.downloads import (
    SECONDS,
    Connect,
    Deadline,
    DownloadTarget,
    Lookups,
    Resolve,
    connected,
    download,
    resolved,
)
from jengine.media.images import MOST_BYTES

LONGEST_SHOWN = 80
LOOKUPS = Lookups()


@dataclass(frozen=True)
class MediaSources:
    """Allowed sources. `domains`: hosts for HTTP; empty allows none."""

    domains: tuple[str, ...] = ()
    folder: Path | None = None  # for file: URLs; None: none are allowed
    resolve: Resolve = resolved
    connect: Connect = connected
    seconds: float = SECONDS  # timeout of one download

    def content(self, url: str, what: str) -> bytes:
        """Contents behind a URL. Raises RequestError."""
        if url[:5].lower() == "data:":
            return data_bytes(url, what)
        parts = split(url, what)
        if parts.scheme == "file":
            return self._file(parts, what)
        if parts.scheme in ("http", "https"):
            return self._download(parts, what)
        raise RequestError(
            f"{what}: a URL begins with {url[:LONGEST_SHOWN]!r}; expected data:, http:, https: or "
            "file:."
        )

    def _file(self, parts: SplitResult, what: str) -> bytes:
        if self.folder is None:
            raise RequestError(
                f"{what}: Cannot load local files without `--allowed-local-media-path`. Send the "
                "image as a data: URL."
            )
        if parts.netloc not in ("", "localhost"):
            raise RequestError(f"{what}: a file: URL names the host {parts.netloc!r}.")
        return folder_file(self.folder, unquote(parts.path), MOST_BYTES, what)

    def _download(self, parts: SplitResult, what: str) -> bytes:
        host, port = self._host(parts, what)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        path = quote(path, safe="!#$%&'()*+,/:;=?@[]~", errors="replace")  # for non-ASCII
        deadline = Deadline(self.seconds)
        try:
            address = self._address(host, port, deadline, what)
            target = DownloadTarget(host, port, address, path, parts.scheme == "https")
            status, data = download(target, self.connect, MOST_BYTES, deadline)
        except TimeoutError:
            raise RequestError(
                f"{what}: {host} did not give the image within {self.seconds:g} seconds."
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise RequestError(
                f"{what}: {host} did not give the image: {type(error).__name__}."
            ) from None
        if status != 200:
            raise RequestError(
                f"{what}: the server answered {status}; expected 200, as redirects are not "
                "followed."
            )
        if len(data) > MOST_BYTES:
            raise RequestError(f"{what} has more than {MOST_BYTES} bytes.")
        return data

    def _host(self, parts: SplitResult, what: str) -> tuple[str, int]:
        try:
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if not host or parts.username is not None or parts.password is not None:
            raise RequestError(f"{what}: the URL has no plain host name.")
        if host not in self.domains:
            allowed = ", ".join(self.domains) or "none"
            raise RequestError(
                f"{what}: The URL must be from one of the allowed domains: {allowed}. Set "
                "--allowed-media-domains, or send the image as a data: URL."
            )
        return host, port or (443 if parts.scheme == "https" else 80)

    def _address(self, host: str, port: int, deadline: Deadline, what: str) -> str:
        """A public address of the host. Raises RequestError."""
        found = LOOKUPS.addresses(self.resolve, host, port, deadline)
        if not found:
            raise RequestError(f"{what}: {host} has no address.")
        if not all(map(is_public, found)):
            raise RequestError(f"{what}: {host} is an address of a private network.")
        return found[0]


def split(url: str, what: str) -> SplitResult:
    """Parse a URL; those that parsers may read differently are refused."""
    if "\\" in url or any(ord(char) <= 32 or ord(char) == 127 for char in unquote_nul(url)):
        raise RequestError(f"{what}: the URL holds a backslash, a space or a control character.")
    try:
        return urlsplit(url)
    except ValueError:
        raise RequestError(f"{what}: the URL cannot be read.") from None


def unquote_nul(url: str) -> str:
    """Decode %00, the one character no file path has."""
    return url.replace("%00", "\0")


def data_bytes(url: str, what: str) -> bytes:
    """Contents of a base64 data URL. Raises RequestError."""
    head, comma, body = url[5:].partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise RequestError(f"{what}: expected data:image/...;base64,... .")
    if len(body) > (MOST_BYTES + 2) // 3 * 4 + 4:
        raise RequestError(f"{what}: the data: URL has more than {MOST_BYTES} bytes.")
    try:
        return base64.b64decode(unquote(body) if "%" in body else body, validate=True)
    except (binascii.Error, ValueError):
        raise RequestError(f"{what}: the data: URL is no valid base64.") from None


# IPv6 networks with an IPv4 address in the last 32 bits: IPv4-compatible, NAT64.
LAST_BITS = (IPv6Network("::/96"), IPv6Network("64:ff9b::/96"))
LOCAL_NAT64 = IPv6Network("64:ff9b:1::/48")


def is_public(address: str) -> bool:
    """Whether an address, and any IPv4 address embedded in it, is globally routable and unicast."""
    one = ip_address(address.split("%")[0])
    if isinstance(one, IPv6Address):
        if one in LOCAL_NAT64:
            return False
        if inner := held(one):
            return all(is_public(str(each)) for each in inner)
    return one.is_global and not one.is_multicast


def held(one: IPv6Address) -> tuple[IPv4Address, ...]:
    """IPv4 addresses embedded in an IPv6 one (mapped, 6to4, Teredo, NAT64)."""
    if any(one in network for network in LAST_BITS):
        return (IPv4Address(int(one) & 0xFFFFFFFF),)
    found = (one.ipv4_mapped, one.sixtofour, *(one.teredo or ()))
    return tuple(each for each in found if each is not None)


# O_NONBLOCK: opening a FIFO would block until it has a writer.
HOW = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def folder_file(folder: Path, path: str, most: int, what: str) -> bytes:
    """Contents of a regular file below the folder. Raises RequestError."""
    parts = parts_below(folder, path, what)
    try:
        found = opened_below(folder, parts)
    except OSError as error:
        raise RequestError(
            f"{what}: cannot read {Path(*parts)}: {error.strerror}; expected a file that is no "
            "link, nor behind one."
        ) from None
    about = os.fstat(found)
    if not stat.S_ISREG(about.st_mode):
        os.close(found)
        raise RequestError(f"{what}: {Path(*parts)} is no regular file.")
    with open(found, "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise RequestError(
            f"{what}: {Path(*parts)} has {about.st_size} bytes; expected at most {most}."
        )
    return content


def parts_below(folder: Path, path: str, what: str) -> tuple[str, ...]:
    """Path components below the folder. Raises RequestError for paths outside."""
    plain = Path(os.path.normpath(path))
    for root in (folder.absolute(), folder.resolve()):
        if plain.is_relative_to(root) and plain != root:
            return plain.relative_to(root).parts
    raise RequestError(f"{what}: the file path is not a subpath of `--allowed-local-media-path`.")


def opened_below(folder: Path, parts: tuple[str, ...]) -> int:
    """Open a file with O_NOFOLLOW at every component; returns its descriptor."""
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for place, name in enumerate(parts):
        is_last = place == len(parts) - 1
        try:
            below = os.open(name, HOW if is_last else HOW | os.O_DIRECTORY, dir_fd=at)
        finally:
            os.close(at)
        at = below
    return at
