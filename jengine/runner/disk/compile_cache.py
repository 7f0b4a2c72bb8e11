"""The persistent compile cache: a private directory, on by default.

Its files are executed, so the directory must belong to this user and be writable by no other.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from pathlib import Path

import jax
from jax._src.compilation_cache import decompress_executable  # as JAX itself reads an entry
from jax.experimental.compilation_cache import compilation_cache

from jengine.cache_folder import cache_folder
from jengine.errors import ConfigError

# JAX writes entries in place, so a process killed meanwhile leaves a truncated one. JAX fails to
# decompress it and never replaces it, so its program would be compiled again at every start. Each
# entry is checked once, at the first start after it was written.

# Entries older than this file's mtime have been checked.
STAMP = ".jengine-checked"
# Seconds after its last change in which an entry may still be written.
BEING_WRITTEN = 2.0
# Longest time for checks, newest entries first, so that a large cache does not delay a start.
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
    except Exception as error:  # noqa: BLE001 - zlib and two zstd packages raise different errors
        logger.debug("%s: %s", file, error)
        return True
    return False


logger = logging.getLogger(__name__)
# XLA's caches inside JAX's, as named in jax_persistent_cache_enable_xla_caches. JAX hashes their
# directories into a program's key, except that of the autotuning cache since
# FIRST_WITHOUT_DIRECTORY.
KERNELS = "xla_gpu_kernel_cache_file"
TUNINGS = "xla_gpu_per_fusion_autotune_cache_dir"
FIRST_WITHOUT_DIRECTORY = (0, 11, 2)
CHOOSE_ANOTHER = (
    "choose another directory with compilation_config={'cache_dir': ...}"
    " (--compilation-config.cache-dir), or XDG_CACHE_HOME"
)
# Seconds without a change after which a file is complete, and the longest wait for that.
SETTLED, LONGEST_WAIT = 0.1, 2.0


def names_directory() -> bool:
    """Whether compile cache keys depend on the cache's path, so that entries cannot be moved."""
    caches = jax.config.jax_persistent_cache_enable_xla_caches  # pyrefly: ignore[missing-attribute]
    tunings = jax.__version_info__ < FIRST_WITHOUT_DIRECTORY and TUNINGS in (caches or "")
    return tunings or caches == "all" or KERNELS in (caches or "")


def default_cache_dir() -> Path:
    """The default directory of compiled programs."""
    return cache_folder() / "xla"


def usual_cache_dir() -> Path:
    """The compile cache directory unless one is given: JAX's configured one, else the default."""
    configured = jax.config.jax_compilation_cache_dir  # pyrefly: ignore[missing-attribute]
    return Path(str(configured)) if configured else default_cache_dir()


def enable_compile_cache(wanted: str | Path | bool | None) -> Path | None:
    """Set JAX's cache directory and return it; None, with a warning, if the default one is
    unusable.

    A directory that the user's program has configured in JAX is kept. A directory given by the user
    must be usable. With `wanted` False nothing is set.
    """
    if wanted is False:
        return None
    configured = jax.config.jax_compilation_cache_dir  # pyrefly: ignore[missing-attribute]
    if wanted in (None, True) and configured:
        return Path(str(configured))
    if wanted in (None, True):
        return _enable_default()
    directory = Path(str(wanted))
    problem = prepare_private(directory)
    if problem:
        raise ConfigError(f"compilation_config['cache_dir']={str(directory)!r}: {problem}.")
    return _use(directory)


def _enable_default() -> Path | None:
    try:
        directory = default_cache_dir()
    except RuntimeError as error:  # no home directory
        return _do_without(f"{error} {CHOOSE_ANOTHER}")
    problem = prepare_private(directory)
    return _do_without(f"{directory}: {problem}") if problem else _use(directory)


def _do_without(problem: str) -> None:
    logger.warning(
        "running without a persistent compile cache, so every start compiles again: %s.", problem
    )


def _use(directory: Path) -> Path:
    remove_broken_entries(directory)
    jax.config.update("jax_compilation_cache_dir", str(directory))
    compilation_cache.reset_cache()  # else JAX keeps the directory that it used first
    if jax.__version_info__ < FIRST_WITHOUT_DIRECTORY:
        # The autotuning cache's directory would be part of every program's key.
        jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
    # By default JAX does not cache small programs, which add up at a start.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return directory


def what_compiling_costs() -> str:
    """Message for waiting users: what is compiling, and whether the next start will be faster."""
    directory = jax.config.jax_compilation_cache_dir  # pyrefly: ignore[missing-attribute]
    if directory is None:
        later = "There is no persistent compile cache, so the next start takes as long."
    else:
        later = f"They are kept in {directory}: the next start loads them in seconds."
    return f"jengine: compiling the model's step programs, which takes a while. {later}"


def wait_for_writes() -> None:
    """Wait until no file of the cache has changed for a moment; for a process about to end.

    JAX writes cache files in place: a truncated one is removed at the next start
    (`remove_broken_entries`), and its program is compiled again.
    """
    end = time.monotonic() + LONGEST_WAIT
    directory = usual_cache_dir()
    while directory.is_dir() and time.monotonic() < end:
        newest = max((file.stat().st_mtime for file in os.scandir(directory)), default=0.0)
        if not 0 <= time.time() - newest < SETTLED:
            return
        time.sleep(SETTLED / 4)


def prepare_private(directory: Path) -> str | None:
    """Create the directory for this user alone. Returns what is wrong with it, or None."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.stat()
    except OSError as error:
        return f"cannot create it ({error.strerror}); {CHOOSE_ANOTHER}"
    if status.st_uid != os.getuid():
        return f"it belongs to user {status.st_uid}, not to you; {CHOOSE_ANOTHER}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "others may write to it, and its contents are executed; run chmod 700 on it"
    if not os.access(directory, os.W_OK | os.X_OK):
        return f"it is not writable; run chmod 700 on it or {CHOOSE_ANOTHER}"
    return None
