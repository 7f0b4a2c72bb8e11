"""jengine's cache folder, whose contents can be recreated."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """The user's cache folder of jengine. Raises RuntimeError without a home directory."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jengine"
