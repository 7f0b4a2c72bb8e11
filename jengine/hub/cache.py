"""The download cache, read without a request: snapshots, and what is in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

COMMIT = re.compile(r"[0-9a-f]{40}")
MAIN = "main"
PART = ".incomplete"  # the end of the name of a blob that is not complete


class CachedModel(NamedTuple):
    """A repository with at least one snapshot in the cache."""

    name: str
    nbytes: int
    unfinished: int  # bytes of files that have not arrived wholly
    folder: Path  # of the newest snapshot


def cache_folder(given: str | Path | None) -> Path:
    """The given cache directory, or Hugging Face's default."""
    from huggingface_hub import constants

    return Path(given or constants.HF_HUB_CACHE).expanduser().absolute()


def repository_folder(cache: Path, repo: str) -> Path:
    return cache / f"models--{repo.replace('/', '--')}"


def commit_of(repository: Path, revision: str | None) -> str | None:
    """The commit that a revision pointed to at the last download; None if unknown."""
    if revision is not None and COMMIT.fullmatch(revision):
        return revision
    # huggingface_hub keeps a branch's or tag's commit in a file of its name.
    file = repository / "refs" / (revision or MAIN)
    if not file.resolve().is_relative_to(repository.resolve()) or not file.is_file():
        return None
    return file.read_text().strip()


def snapshot_folder(repository: Path, commit: str) -> Path:
    return repository / "snapshots" / commit


def files_of(snapshot: Path) -> list[str]:
    """Paths of all files of a snapshot, without dangling links."""
    return sorted(
        path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file()
    )


def cached_models(given: str | Path | None = None) -> Iterator[CachedModel]:
    """The cached repositories, with sizes, in order of names."""
    for repository in sorted(cache_folder(given).glob("models--*")):
        snapshots = [path for path in (repository / "snapshots").glob("*") if path.is_dir()]
        if not snapshots:
            continue
        sizes = [(path.name.endswith(PART), path.stat().st_size)
                 for path in (repository / "blobs").glob("*")]  # fmt: skip
        yield CachedModel(
            repository.name.removeprefix("models--").replace("--", "/", 1),
            sum(size for is_part, size in sizes if not is_part),
            sum(size for is_part, size in sizes if is_part),
            max(snapshots, key=lambda path: path.stat().st_mtime),
        )
