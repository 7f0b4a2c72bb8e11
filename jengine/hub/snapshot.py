"""A repository's snapshot in the download cache, with the files that are wanted.

The commit is looked up once; what is there already is not asked for again. Offline, or where the
hub cannot be reached, a snapshot that is complete is taken from the cache.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from jengine.errors import CheckpointError, JengineError
from jengine.hub import cache, failures
from jengine.hub.blobs import Blob, fetch_blobs, sizes, told
from jengine.hub.names import GGUF, HubName
from jengine.hub.options import Bar, HasHeader, HubOptions, silent
from jengine.hub.wanted import of_quant, without

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo


FIRST, MOST = 1 << 20, 64 << 20  # bytes of a file; vocabularies take 5 to 15 MB
PARTIAL_CONTENT = 206


class NoBeginning(Exception):
    """Raised if a file's header cannot be fetched without the whole file."""


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


logger = logging.getLogger(__name__)
AT_ONCE = 8  # small files
SPARE = 64 << 20  # bytes that a disk has left after a download


def local_snapshot(name: HubName, options: HubOptions) -> Path:
    """Download what is missing of a repository. Returns its snapshot directory, or the GGUF
    file."""
    wanted = of_quant(options.wanted, name.quant)
    revision = name.commit or options.revision
    asked = _Asked(name, replace(options, wanted=wanted, revision=revision))
    commit = asked.known_commit
    if commit is not None and (asked.offline or commit == revision):
        found = asked.cached(commit, certain=not asked.offline)
        if found is not None:
            return found
    if asked.offline:
        raise failures.not_cached(asked.name, asked.repository, revision)
    try:
        return asked.download()
    except JengineError as error:
        raise type(error)(f"{name}: {error}") from error
    except Exception as error:
        found = asked.cached(commit) if commit and failures.is_unreachable(error) else None
        if found is None:
            explained = failures.explained(error, name, asked.options, asked.repository)
            if explained is None:
                raise
            raise explained from error
        logger.warning("%s: the hub cannot be reached (%s). Its cached snapshot is used: %s",
                       name, error, found)  # fmt: skip
        return found


@dataclass(frozen=True)
class _Asked:
    """One call of `local_snapshot`."""

    name: HubName
    options: HubOptions

    @cached_property
    def repository(self) -> Path:
        """The repository's directory in the cache."""
        return cache.repository_folder(cache.cache_folder(self.options.cache_dir), self.name.repo)

    @cached_property
    def offline(self) -> bool:
        """Whether requests are forbidden."""
        return failures.is_offline()

    @property
    def known_commit(self) -> str | None:
        """The commit of the revision as last seen; None if unknown."""
        return cache.commit_of(self.repository, self.options.revision)

    def cached(self, commit: str, *, certain: bool = False) -> Path | None:
        """The snapshot of a commit if all wanted files are present, else None. `certain`: also
        require its weights, which are downloaded last, as proof that the small files are
        complete."""
        snapshot = cache.snapshot_folder(self.repository, commit)
        paths = without(cache.files_of(snapshot), self.options.ignore_patterns)
        if not paths:
            return None
        try:
            self.options.wanted.small(paths)
            large = self.options.wanted.large(paths, snapshot)
        except CheckpointError:  # said of the repository's own files, if it can be asked
            return None
        return None if certain and not large else self.options.wanted.found(snapshot, large)

    def download(self) -> Path:
        """Resolve the revision, then download missing files."""
        info = self._info()
        assert info.sha is not None and info.siblings is not None, "the hub names commit and files"
        files = {one.rfilename: Blob.of(one) for one in info.siblings}
        paths = without(files, self.options.ignore_patterns)
        wanted, snapshot = self.options.wanted, cache.snapshot_folder(self.repository, info.sha)
        missing = _missing(files, wanted.small(paths), snapshot)
        self._fetch(missing, info.sha, silent)
        large = wanted.large(paths, snapshot)
        missing = _missing(files, large, snapshot)
        if missing:
            present, whole = sizes(self.repository, missing.values())
            _check_disk(self.repository, whole - present)
            self._check({path: files[path] for path in large}, snapshot)
            self._fetch(missing, info.sha, self.options.bar)
        self._remember(info.sha)
        return wanted.found(snapshot, large)

    def _info(self) -> ModelInfo:
        from huggingface_hub import HfApi, constants

        return HfApi(endpoint=constants.ENDPOINT, token=self.options.token).model_info(
            self.name.repo, revision=self.options.revision, files_metadata=True
        )

    def _check(self, large: Mapping[str, Blob], snapshot: Path) -> None:
        """Raise before a download of weights that are unsupported or do not fit the memory."""
        check, has_header = self.options.check, self.options.has_header
        first = self.options.wanted.found(snapshot, [*large])
        if check is None:
            return
        if first.suffix != GGUF:
            return check(snapshot)
        if has_header is None:
            return
        commit, token = snapshot.name, self.options.token
        with tempfile.TemporaryDirectory(prefix="jengine-") as place:
            folder = Path(place)
            try:
                if read_beginnings(folder, self.name.repo, large, commit, token, has_header):
                    check(folder / first.name)
            except JengineError as error:  # which names the file where it was looked at
                raise type(error)(str(error).replace(f"{folder}/", "")) from error

    def _fetch(self, missing: Mapping[str, Blob], commit: str, bar: Bar) -> None:
        """Add files to the snapshot: huggingface_hub downloads small ones and links blobs that are
        present."""
        from huggingface_hub import constants, hf_hub_download

        fetch_blobs(self.name, missing, commit, self.options, self.repository, bar)

        def link(path: str) -> None:
            hf_hub_download(
                self.name.repo, path, revision=commit, token=self.options.token,
                cache_dir=self.repository.parent, endpoint=constants.ENDPOINT,
                tqdm_class=told(lambda _: None),  # pyrefly: ignore[bad-argument-type]
            )  # fmt: skip

        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(link, missing))

    def _remember(self, commit: str) -> None:
        """Record the commit of a branch or tag, as huggingface_hub does."""
        revision = self.options.revision or cache.MAIN
        file = self.repository / "refs" / revision
        if revision != commit and file.resolve().is_relative_to(self.repository.resolve()):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(commit)


def _missing(files: Mapping[str, Blob], wanted: Sequence[str], snapshot: Path) -> dict[str, Blob]:
    """The wanted files that the snapshot lacks."""
    return {path: files[path] for path in wanted if not (snapshot / path).is_file()}


def _check_disk(folder: Path, needed: int) -> None:
    """Raise CheckpointError if the download does not fit the disk."""
    place = next(one for one in (folder, *folder.parents) if one.exists())
    free = shutil.disk_usage(place).free
    if needed + SPARE > free:
        raise CheckpointError(
            f"{failures.shown_bytes(needed)} are to be downloaded, and {folder.parent} has "
            f"{failures.shown_bytes(free)} free. Make room (`jengine models` lists what is "
            "cached), or give another folder: download_dir=..., or the variable HF_HOME."
        )
