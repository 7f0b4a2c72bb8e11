"""Checks of settings of media: how many a prompt may have, where URLs may lead. No jax."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jengine.errors import ConfigError, RequestError
from jengine.media.options import checked_limits

_HOST = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?|[0-9a-f:.]*:[0-9a-f:.]*", re.IGNORECASE)


def checked_media(
    limits: Any, folder: str | Path, domains: Sequence[str] | None
) -> dict[str, int] | None:
    """The numbers of media of a prompt, by kind. A ConfigError about numbers of no kind, a folder
    that is none, and other than hosts."""
    try:
        numbers = None if limits is None else checked_limits(limits)
    except RequestError as error:
        raise ConfigError(str(error)) from None
    if folder and not Path(folder).is_dir():
        raise ConfigError(f"allowed_local_media_path={str(folder)!r}: expected a folder.")
    for one in domains or ():
        if not _HOST.fullmatch(one):
            raise ConfigError(
                f"allowed_media_domains has {one!r}; expected names or addresses of hosts, such as "
                "'images.example.org', without scheme, port and path."
            )
    return numbers
