"""Disables the compile cache unless all processes of an engine share its folder.

JAX writes its compile cache in process 0 alone. With a folder per node, process 0 loads its
programs at the second start while the others compile: on GPUs they then wait for process 0's
autotuning results, which it does not produce. So a folder is used by all processes or by none.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

logger = logging.getLogger(__name__)
# Longest wait for another node's file to become visible, in seconds.
SEEN_WITHIN = 3.0
# Within the range of numbers on which processes agree.
NONCES = 2**31


def agree_on_compile_cache(least: Callable[[int], int], process: int) -> None:
    """Disable the compile cache in every process unless all share its folder. Every process must
    call this; `least` is a minimum over processes."""
    configured = jax.config.jax_compilation_cache_dir  # pyrefly: ignore[missing-attribute]
    if not is_shared(Path(str(configured)) if configured else None, least, process):
        logger.warning(
            "The compile cache is off, and every start compiles again: the processes of this "
            "engine do not share its folder, which is %s here. Give all nodes one folder with "
            "compilation_config={'cache_dir': ...} (--compilation-config.cache-dir).", configured,
        )  # fmt: skip
        jax.config.update("jax_compilation_cache_dir", None)
        compilation_cache.reset_cache()


def is_shared(folder: Path | None, least: Callable[[int], int], process: int) -> bool:
    """Whether every process sees a file that the first one creates."""
    nonce = least(secrets.randbelow(NONCES))
    is_first = least(process) == process
    file = None if folder is None else folder / f".shared-{nonce}"
    if file is not None and is_first:
        with suppress(OSError):  # then none sees it
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file.touch()
    least(0)  # barrier: the file exists now if it ever will
    seen = bool(least(int(file is not None and is_seen(file))))
    if file is not None and is_first:
        with suppress(OSError):
            file.unlink()
    return seen


def is_seen(file: Path) -> bool:
    """Whether the file appears within a few seconds: network file systems cache negative
    lookups."""
    end = time.monotonic() + SEEN_WITHIN
    while file.parent.is_dir() and file.name not in os.listdir(file.parent):
        if time.monotonic() > end:
            return False
        time.sleep(SEEN_WITHIN / 30)
    return file.parent.is_dir()
