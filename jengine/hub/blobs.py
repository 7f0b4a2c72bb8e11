"""Downloads large files into the cache's blobs: resumed where they broke off, checked by sha256.

huggingface_hub drops what it has of a file when a download ends early. Its `http_get` can go on in
the middle, so it is given a file of a fixed name; the library then links to the complete blob.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jengine.hub.cache import PART
from jengine.hub.failures import Corrupted, shown_bytes
from jengine.hub.names import HubName
from jengine.hub.options import Bar, HubOptions

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

logger = logging.getLogger(__name__)
AT_ONCE = 4  # files


@dataclass(frozen=True)
class Blob:
    """Size and hash of a file in the hub's repository."""

    nbytes: int
    sha256: str | None  # None: a small file of git's own, whose hash is another

    @classmethod
    def of(cls, file: RepoSibling) -> Blob:
        """Convert huggingface_hub's listing."""
        return cls(file.size or 0, file.lfs.sha256 if file.lfs is not None else None)

    def place(self, repository: Path) -> Path:
        """The blob's path in the cache."""
        return repository / "blobs" / (self.sha256 or "")

    def present(self, repository: Path) -> int:
        """Bytes present, in the blob or its partial file."""
        place = self.place(repository)
        if self.sha256 is None:
            return 0
        part = part_of(place)
        return self.nbytes if place.is_file() else part.stat().st_size if part.is_file() else 0


def part_of(place: Path) -> Path:
    """The partial file of a blob."""
    return place.with_name(place.name + PART)


def sizes(repository: Path, blobs: Iterable[Blob]) -> tuple[int, int]:
    """Return (bytes present, total bytes) of these blobs."""
    found = list(set(blobs))
    return sum(one.present(repository) for one in found), sum(one.nbytes for one in found)


def fetch_blobs(
    name: HubName, files: Mapping[str, Blob], commit: str, options: HubOptions, repository: Path,
    bar_of: Bar,
) -> None:  # fmt: skip
    """Download missing blobs, under one progress bar."""
    once = {
        blob: path for path, blob in files.items()
        if blob.sha256 is not None and not blob.place(repository).is_file()
    }  # fmt: skip
    if not once:
        return
    present, whole = sizes(repository, once)
    (repository / "blobs").mkdir(parents=True, exist_ok=True)
    logger.info(
        "Downloading %s of %s, %d files, to %s",
        shown_bytes(whole - present), name, len(once), repository,
    )  # fmt: skip
    stop, lock = threading.Event(), threading.Lock()
    with bar_of(total=whole, initial=present, desc=f"Downloading {name}", unit="B",
                unit_scale=True) as bar:  # fmt: skip

        def arrived(count: int) -> None:
            if stop.is_set():
                raise InterruptedError("another file's download has ended with an error")
            with lock:
                bar.update(count)

        def fetch(blob: Blob) -> None:
            _fetch(name.repo, once[blob], blob, commit, options, repository, arrived)

        with ThreadPoolExecutor(AT_ONCE) as pool:
            downloads = [pool.submit(fetch, blob) for blob in once]
            try:
                for download in downloads:
                    download.result()
            except BaseException:
                stop.set()
                pool.shutdown(cancel_futures=True)
                raise


def _fetch(
    repo: str, path: str, blob: Blob, commit: str, options: HubOptions, repository: Path,
    arrived: Callable[[int], None],
) -> None:  # fmt: skip
    """Download a blob, resuming its partial file, and check the hash."""
    from huggingface_hub import constants, hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import WeakFileLock, build_hf_headers

    place = blob.place(repository)
    locks = repository.parent / ".locks" / repository.name
    locks.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(str(locks / f"{place.name}.lock")):
        if place.is_file():  # another process was faster
            return
        with part_of(place).open("ab") as file:
            if file.tell() > blob.nbytes:
                file.truncate(0)
            http_get(
                hf_hub_url(repo, path, revision=commit, endpoint=constants.ENDPOINT),
                file,
                resume_size=file.tell(),
                headers=build_hf_headers(token=options.token),
                expected_size=blob.nbytes,
                displayed_filename=path,
                tqdm_class=told(arrived),  # pyrefly: ignore[bad-argument-type]
            )
        with part_of(place).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != blob.sha256:
            part_of(place).unlink()
            raise Corrupted(f"{path} has arrived with the sha256 {found}, expected {blob.sha256}")
        os.replace(part_of(place), place)


def told(arrived: Callable[[int], None]) -> type[Any]:
    """A tqdm-like class for huggingface_hub that passes the number of new bytes to `arrived`."""

    class ByteBar:
        def __init__(self, *_given: Any, **_options: Any) -> None:
            pass

        def __enter__(self) -> ByteBar:
            return self

        def __exit__(self, *_error: object) -> None:
            pass

        def update(self, count: float | None = 1) -> None:
            arrived(int(count or 0))

    return ByteBar
