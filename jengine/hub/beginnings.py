"""Reads the beginnings of files that describe themselves, before they are downloaded.

In: paths in a repository. Out: files of their whole size in a folder of the caller's, with a hole
behind what was read. Never fails a download: where the hub sends no ranges, nothing is looked at.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from jengine.errors import JengineError
from jengine.hub.blobs import Blob
from jengine.hub.options import HasHeader

logger = logging.getLogger(__name__)
FIRST, MOST = 1 << 20, 64 << 20  # bytes of a file; vocabularies take 5 to 15 MB
PARTIAL_CONTENT = 206


class NoBeginning(Exception):
    """A header that is not to be had without the file."""


def read_beginnings(
    folder: Path, repo: str, files: Mapping[str, Blob], commit: str, token: str | bool | None,
    has_header: HasHeader,
) -> bool:  # fmt: skip
    """Whether the files' headers are in `folder` now. Raises CheckpointError for broken ones."""
    from huggingface_hub import constants, hf_hub_url
    from huggingface_hub.utils import build_hf_headers

    headers = {**build_hf_headers(token=token), "Accept-Encoding": "identity"}
    try:
        for path, blob in files.items():
            url = hf_hub_url(repo, path, revision=commit, endpoint=constants.ENDPOINT)
            file = folder / PurePosixPath(path).name
            _read_header(file, blob.nbytes, url, headers, has_header)
    except JengineError:
        raise
    except Exception as error:  # noqa: BLE001 - the download says what is wrong with the hub
        logger.debug("%s: not checked before its download: %s", repo, error)
        return False
    return True


def _read_header(
    file: Path, whole: int, url: str, headers: Mapping[str, str], has_header: HasHeader
) -> None:
    arrived, most = 0, min(whole, MOST)
    with file.open("wb") as stream:
        stream.truncate(whole)
        while not (arrived and has_header(file, arrived)):
            if arrived >= most:
                raise NoBeginning(f"{file.name} has no header in its first {most} bytes")
            stream.write(_piece(url, headers, arrived, min(max(FIRST, 2 * arrived), most)))
            stream.flush()
            arrived = stream.tell()


def _piece(url: str, headers: Mapping[str, str], start: int, end: int) -> bytes:
    """Bytes of a file, asked for once."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    asked = {**headers, "Range": f"bytes={start}-{end - 1}"}
    timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
    with get_session().stream("GET", url, headers=asked, timeout=timeout) as response:
        sent = response.headers.get("Content-Range", "")
        # With status 200 it sends the whole file.
        if response.status_code != PARTIAL_CONTENT or not sent.startswith(f"bytes {start}-"):
            raise NoBeginning(f"the answer to a range of {url} is {response.status_code} {sent}")
        found = next(response.iter_bytes(end - start), b"")
    if len(found) < end - start:
        raise NoBeginning(f"{len(found)} bytes of {url} have arrived, expected {end - start}")
    return found
