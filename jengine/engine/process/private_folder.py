"""Private temporary folder for a core's socket.

Each owner holds a lock on a file inside, released by the system at its death; the next process to
make a folder removes those without a lock.
"""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

from jengine.errors import EngineDead

PREFIX = "jengine-core-"
LOCK = "owner"
SOCKET = "core.sock"
# The longest path of a local socket, in bytes, on the systems that allow least.
LONGEST_PATH = 103


class PrivateFolder:
    """A new folder of mode 0700."""

    def __init__(self) -> None:
        base = Path(tempfile.gettempdir())
        if len(bytes(base / f"{PREFIX}12345678" / SOCKET)) > LONGEST_PATH:
            base = Path("/tmp")  # noqa: S108 - the folder made in it is private
        remove_abandoned(base)
        try:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        except OSError as error:
            raise EngineDead(
                f"no folder for the engine core's socket can be made in {base}: {error}. Set TMPDIR"
                " to a folder that can be written to."
            ) from error
        self._lock: IO[str] = (self.path / LOCK).open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    @property
    def address(self) -> str:
        """Address of a socket in it."""
        return f"ipc://{self.path / SOCKET}"

    def remove(self) -> None:
        """Remove it and its contents. Idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def remove_abandoned(base: Path) -> None:
    """Remove folders whose owner has ended; those of other users are left alone."""
    for folder in base.glob(f"{PREFIX}*"):
        with suppress(OSError), (folder / LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
