"""Removes truncated entries of JAX's compile cache.

JAX writes entries in place, so a process killed while it writes leaves part of one. JAX fails to
decompress it and never replaces it either, so that program would be compiled again at every start.
Each entry is checked once, at the first start after it was written.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

from jax._src.compilation_cache import decompress_executable  # as JAX itself reads an entry

logger = logging.getLogger(__name__)
# Its time says which entries have been checked: those that are older.
STAMP = ".jengine-checked"
# An entry that changed less than so many seconds ago may still be written.
BEING_WRITTEN = 2.0
# The newest are checked first, for so many seconds at most, lest a large cache holds up a start.
LONGEST_CHECK = 1.0


def remove_broken_entries(directory: Path) -> None:
    """Remove unreadable entries among those written since the last call."""
    began, until = time.monotonic(), time.time() - BEING_WRITTEN
    stamp = directory / STAMP
    since = stamp.stat().st_mtime if stamp.exists() else 0.0
    for file in entries_between(directory, since, until):
        if time.monotonic() - began > LONGEST_CHECK:
            break
        if is_broken(file):
            logger.warning("%s: removed, as it was cut short while it was written; its program is "
                           "compiled again", file)  # fmt: skip
            file.unlink(missing_ok=True)
    stamp.touch(mode=0o600)
    os.utime(stamp, (until, until))


def entries_between(directory: Path, since: float, until: float) -> list[Path]:
    """Cache entries written within this time span, newest first."""
    times = {Path(file): file.stat().st_mtime for file in os.scandir(directory)
             if file.name.endswith("-cache")}  # fmt: skip
    written = [file for file, when in times.items() if since <= when < until]
    return sorted(written, key=lambda file: times[file], reverse=True)


def is_broken(file: Path) -> bool:
    """Whether an entry cannot be decompressed."""
    try:
        decompress_executable(file.read_bytes())
    except FileNotFoundError:  # another process has removed it
        return False
    except Exception as error:  # noqa: BLE001 - zlib and two kinds of zstd have errors of their own
        logger.debug("%s: %s", file, error)
        return True
    return False
