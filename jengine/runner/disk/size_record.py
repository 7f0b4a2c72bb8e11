"""The cache size of the last start, kept beside the compiled programs that depend on it.

In: everything else that an engine's programs depend on. Out: block counts, so that the next start
uses the same programs although a little more or less memory is free. Bundles contain it too.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path

import jax
import msgspec

from jengine.private_files import write_private

logger = logging.getLogger(__name__)
PREFIX = "jengine-cache-size-"


class CacheSize(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Blocks of each cache group."""

    num_blocks: tuple[int, ...]


@dataclass(frozen=True)
class SizeRecord:
    """The recorded cache size of engines with equal programs: one file in the compile cache."""

    file: Path

    @classmethod
    def of(cls, *parts: object) -> SizeRecord | None:
        """The record for programs that depend on `parts`; None without a compile cache."""
        directory = jax.config.jax_compilation_cache_dir  # pyrefly: ignore[missing-attribute]
        if not directory:
            return None
        name = hashlib.sha256(repr(parts).encode()).hexdigest()
        return cls(Path(str(directory)) / f"{PREFIX}{name}")

    def read(self) -> tuple[int, ...] | None:
        """The block counts of the last start; None if there is no readable record."""
        try:
            return msgspec.json.decode(self.file.read_bytes(), type=CacheSize).num_blocks
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            logger.warning("%s is not used: %s", self.file, error)
            return None

    def write(self, num_blocks: tuple[int, ...]) -> None:
        """Record the blocks of this start."""
        if self.read() == num_blocks:
            return
        try:
            write_private(self.file, msgspec.json.encode(CacheSize(num_blocks)))
        except OSError as error:  # the next start may then have to compile again
            logger.warning("%s cannot be written: %s", self.file, error)
