"""Errors of the Hugging Face Hub, with advice. Never shows a token."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from jengine.errors import CheckpointError, nearest_name
from jengine.hub import cache
from jengine.hub.names import HubName
from jengine.hub.options import HubOptions

GIGA, MEGA = 10**9, 10**6
MOST_NAMED = 8
FORBIDDEN = (401, 403)


class Corrupted(Exception):
    """A downloaded file whose hash differs from the hub's."""


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE forbids requests."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def is_unreachable(error: BaseException) -> bool:
    """Whether the hub could not be reached or failed itself (5xx), so that the cache may stand
    in."""
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(error, HfHubHTTPError):
        return error.response.status_code >= 500
    # Those of httpx and httpx2, whichever the library uses.
    return any(one.__name__ == "TransportError" for one in type(error).__mro__) or isinstance(
        error, ConnectionError | TimeoutError
    )


def not_cached(name: HubName, repository: Path, revision: str | None) -> CheckpointError:
    """The error for files that are missing from the cache while offline."""
    there = "is not in the cache"
    if repository.is_dir():
        there = "is not complete in the cache" + (f" at revision {revision!r}" if revision else "")
    return CheckpointError(
        f"{name}: {there} ({repository.parent}), and HF_HUB_OFFLINE forbids requests. Unset it, or "
        f"run `jengine pull {name}` where there is a connection."
    )


def explained(
    error: Exception, name: HubName, options: HubOptions, repository: Path
) -> CheckpointError | None:
    """Translate an error of huggingface_hub or the system; None if it is not one of theirs."""
    from huggingface_hub import errors

    place = endpoint()
    if isinstance(error, errors.GatedRepoError):
        return CheckpointError(
            f"{name}: the repository is gated. Accept its conditions at {place}/{name.repo}, then "
            f"try again. {token_words(options.token)}"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return CheckpointError(
            f"{name}: there is no revision {options.revision!r}.{_revisions(name, options)}"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return CheckpointError(
            f"{name}: {place} has no such repository, or it is private; a local folder of this "
            f"name is not there either.{_similar(name, options)} {token_words(options.token)}"
        )
    if isinstance(error, errors.HfHubHTTPError):
        status = error.response.status_code
        if status in FORBIDDEN:
            return CheckpointError(
                f"{name}: {place} refuses access ({status}). {token_words(options.token)}"
            )
        return CheckpointError(
            f"{name}: {place} answers with status {status}. {_there(repository)}"
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return CheckpointError(
            f"{name}: the disk of {repository.parent} is full. {_there(repository)} Make room, or "
            "give another folder: download_dir=..., or the variable HF_HOME."
        )
    if isinstance(error, Corrupted):
        return CheckpointError(f"{name}: {error}. It was dropped; try again.")
    if is_unreachable(error) or isinstance(error, OSError):
        return CheckpointError(
            f"{name}: the connection to {place} failed ({type(error).__name__}: {error}). "
            f"{_there(repository)}"
        )
    return None


def endpoint() -> str:
    """The hub's URL."""
    from huggingface_hub import constants

    return constants.ENDPOINT


def token_words(given: str | bool | None) -> str:
    """Describe which token was sent, without showing it."""
    source = token_source(given)
    if source is None:
        return (
            f"No token was sent: make one at {endpoint()}/settings/tokens and put it into the "
            "variable HF_TOKEN, or run `hf auth login`."
        )
    return f"The token of {source} was sent: does it have access?"


def token_source(given: str | bool | None) -> str | None:
    """Origin of the token (argument, environment variable or file); None without a token."""
    from huggingface_hub import constants, get_token

    if given is False or (given in (None, True) and not get_token()):
        return None
    if isinstance(given, str):
        return "hf_token"
    named = [one for one in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN") if os.environ.get(one)]
    return f"the variable {named[0]}" if named else f"the file {constants.HF_TOKEN_PATH}"


def shown_bytes(count: float) -> str:
    """Format a number of bytes for people."""
    unit, name = (GIGA, "GB") if count >= GIGA else (MEGA, "MB") if count >= MEGA else (1000, "kB")
    return f"{count / unit:.1f} {name}"


def _there(repository: Path) -> str:
    """How much of an interrupted download is in the cache."""
    blobs = [path for path in (repository / "blobs").glob("*") if path.is_file()]
    arrived = sum(path.stat().st_size for path in blobs)
    if not arrived:
        return "Nothing has arrived yet; try again later."
    parts = sum(path.name.endswith(cache.PART) for path in blobs)
    return (
        f"{shown_bytes(arrived)} of it are in the cache, {parts} of the files not complete; the "
        "next try goes on from there."
    )


def _similar(name: HubName, options: HubOptions) -> str:
    """Suggest repositories with similar names, from the cache and the hub's search."""
    known = {one.name for one in cache.cached_models(options.cache_dir)}
    known = known.union(_searched(name, options)) - {name.repo}
    if close := nearest_name(name.repo, known):
        return close
    found = sorted(known)[:MOST_NAMED]
    return f" The cache and the hub's search have {', '.join(found)}." if found else ""


def _searched(name: HubName, options: HubOptions) -> list[str]:
    from huggingface_hub import HfApi

    api = HfApi(endpoint=endpoint(), token=options.token)
    try:
        return [one.id for one in api.list_models(search=name.repo.split("/")[1], limit=MOST_NAMED)]
    except Exception:  # noqa: BLE001 - a hint is not worth an error of its own
        return []


def _revisions(name: HubName, options: HubOptions) -> str:
    """List the existing branches and tags."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        refs = HfApi(endpoint=endpoint(), token=options.token).list_repo_refs(name.repo)
    except HfHubHTTPError:
        return ""
    found = [one.name for one in (*refs.branches, *refs.tags)][:MOST_NAMED]
    close = nearest_name(str(options.revision), found)
    return close or f" There are {', '.join(found)}, and commits by their 40 digits."
