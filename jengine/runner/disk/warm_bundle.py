"""A warm bundle: the compiled programs of one engine in a file, for machines of the same kind.

In: compile cache entries that an engine has used, and the library of CPU kernels that they call.
Out: a zip file with a manifest, and the same entries in another cache. Everything is checked before
anything is written. The contents of a bundle are executed: load only bundles whose author you
trust.

Entries are those of JAX's persistent cache and the recorded cache size, so engines need not know
bundles. A bundle is checked against its checksums and the machine. The library's name depends on
its source, jaxlib, flags, processor and compiler: a machine with another compiler builds its own,
one without a compiler uses any for its processor. Only `jengine cache load` installs a library.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import threading
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from jengine.errors import ConfigError
from jengine.private_files import private_file, write_private
from jengine.runner.disk.machine import Machine
from jengine.runner.disk.size_record import PREFIX

MANIFEST = "manifest.json"
ENTRIES, KERNELS = "entries/", "kernels/"
FORMAT = 1
# File names in the cache are a function's name and a hash, without a path separator.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.<>-]{0,250}")
# As named by `pallas_kernels.cpu.compiler.library_name`.
LIBRARY = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}\.so")
MOST_MANIFEST_BYTES = 2**24


class BundleEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of the bundle: size and hash."""

    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Contents of a bundle, and the machine it is for."""

    format: int
    model: str
    settings: dict[str, Any]
    machine: Machine
    # Set if cache keys depend on the cache's directory: entries are only found there.
    directory: str | None
    entries: dict[str, BundleEntry]
    kernels: dict[str, BundleEntry] = {}  # libraries that programs call

    @property
    def size(self) -> int:
        """Bytes of all entries."""
        return sum(entry.size for entry in self.parts.values())

    @property
    def parts(self) -> dict[str, BundleEntry]:
        """All entries and kernels by their name in the archive."""
        return {
            **{ENTRIES + name: entry for name, entry in self.entries.items()},
            **{KERNELS + name: entry for name, entry in self.kernels.items()},
        }


@dataclass
class Loaded:
    """Result of loading: names of entries written, already present, and kept although different."""

    written: list[str] = field(default_factory=list)
    there: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)


class Used:
    """Names of cache files that this process has opened: programs that JAX has read or written, and
    the size record that they were compiled for.

    Uses a Python audit hook, since JAX does not report which entries it has used.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = os.path.realpath(directory)
        self._names: set[str] = set()
        self._lock = threading.Lock()
        self.listening = False

    @property
    def names(self) -> list[str]:
        """The names of files that still exist."""
        with self._lock:
            found = sorted(self._names)
        return [name for name in found if (Path(self._directory) / name).is_file()]

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Audit hook: note opened cache entries and size records."""
        if not self.listening or event != "open" or not isinstance(arguments[0], (str, bytes)):
            return
        folder, name = os.path.split(os.fsdecode(arguments[0]))
        kept = name.endswith("-cache") or name.startswith(PREFIX)
        if kept and os.path.realpath(folder) == self._directory:
            with self._lock:
                self._names.add(name)


@contextmanager
def used_entries(directory: Path) -> Iterator[Used]:
    """Track the entries used in this context. An audit hook cannot be removed and stays, ignoring
    events, so this is for processes that end soon."""
    used = Used(directory)
    sys.addaudithook(used.hear)
    used.listening = True
    try:
        yield used
    finally:
        used.listening = False


def save_bundle(
    file: Path,
    directory: Path,
    names: Iterable[str],
    manifest: Manifest,
    library: Path | None = None,
) -> Manifest:
    """Write these cache entries, and a library of kernels, to a file, atomically. Returns
    `manifest` completed with them."""
    entries = {name: (directory / name).read_bytes() for name in sorted(names)}
    kernels = {} if library is None else {library.name: library.read_bytes()}
    manifest = msgspec.structs.replace(
        manifest, entries=described(entries), kernels=described(kernels)
    )
    partial = file.with_name(f".{file.name}.partial")
    try:
        with private_file(partial) as stream, zipfile.ZipFile(stream, "w") as archive:
            text = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
            archive.writestr(MANIFEST, text)
            for name, data in entries.items():  # compressed already
                archive.writestr(ENTRIES + name, data)
            for name, data in kernels.items():
                archive.writestr(KERNELS + name, data, zipfile.ZIP_DEFLATED)
        partial.replace(file)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written: {error}.") from error
    finally:
        partial.unlink(missing_ok=True)
    return manifest


def described(contents: Mapping[str, bytes]) -> dict[str, BundleEntry]:
    return {name: BundleEntry(len(data), digest(data)) for name, data in contents.items()}


def load_bundle(
    file: Path,
    directory: Path,
    here: Machine,
    *,
    names_directory: bool,
    libraries: Callable[[], Path] | None = None,
    overwrite: bool = False,
) -> Loaded:
    """Write a bundle's entries into a cache, if they were compiled for a machine like this.

    An existing entry that differs is kept unless `overwrite` is set: both are the same program,
    compiled twice. `names_directory`: whether programs' keys depend on the cache's directory here.
    `libraries` returns the folder for kernels, which only this user may write.
    """
    with opened(file) as archive:
        manifest = checked_manifest(file, archive)
        refuse_elsewhere(file, manifest, here, directory if names_directory else None)
        for part, entry in manifest.parts.items():  # all of them, before any is written
            read_entry(file, archive, part, entry)
        folders = {ENTRIES: directory}
        if manifest.kernels and libraries is not None:
            folders[KERNELS] = libraries()
        loaded = Loaded()
        for part, entry in manifest.parts.items():
            kind, _, name = part.rpartition("/")
            if (folder := folders.get(kind + "/")) is None:
                continue
            target = folder / name
            if target.exists() and digest(target.read_bytes()) == entry.sha256:
                loaded.there.append(name)
            elif target.exists() and not overwrite:
                loaded.kept.append(name)
            else:
                write_private(target, read_entry(file, archive, part, entry))
                loaded.written.append(name)
    return loaded


def read_manifest(file: Path) -> Manifest:
    with opened(file) as archive:
        return checked_manifest(file, archive)


def refuse_elsewhere(file: Path, manifest: Manifest, here: Machine, directory: Path | None) -> None:
    """Raise ConfigError if the bundle is for another kind of machine, or its keys for another cache
    directory."""
    differences = manifest.machine.differences(here)
    ours = None if directory is None else str(directory)
    if manifest.directory != ours:
        differences.append(
            f"directory that programs depend on: {manifest.directory or 'none'} there, "
            f"{ours or 'none'} here"
        )
    if differences:
        raise ConfigError(
            f"{file} was made on another kind of machine, whose programs cannot run here: "
            f"{'; '.join(differences)}. Make a bundle on a machine like this one with jengine "
            "cache save."
        )


@contextmanager
def opened(file: Path) -> Iterator[zipfile.ZipFile]:
    """The bundle as an archive; errors become ConfigError."""
    try:
        with zipfile.ZipFile(file) as archive:
            yield archive
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror or error}.") from error
    except (zipfile.BadZipFile, zipfile.LargeZipFile, EOFError, NotImplementedError) as error:
        raise ConfigError(f"{file} is damaged or no bundle: {error}. Copy it again.") from error


def checked_manifest(file: Path, archive: zipfile.ZipFile) -> Manifest:
    """The manifest, after checking that the archive contains exactly what it lists."""
    parts = [part.filename for part in archive.infolist()]
    if MANIFEST not in parts:
        raise ConfigError(f"{file} has no {MANIFEST}: it was not made by jengine cache save.")
    text = read_part(file, archive, MANIFEST, MOST_MANIFEST_BYTES)
    try:
        manifest = msgspec.json.decode(text, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{file}: its manifest cannot be read: {error}. It is damaged, or of another version "
            "of jengine."
        ) from error
    if manifest.format != FORMAT:
        raise ConfigError(
            f"{file} has format {manifest.format}, expected {FORMAT}. Make it again with this "
            "version of jengine."
        )
    bad = [name for name in manifest.entries if not NAME.fullmatch(name)]
    bad += [name for name in manifest.kernels if not LIBRARY.fullmatch(name)]
    if bad:
        raise ConfigError(f"{file}: {bad[0][:80]!r} is not a file name of a compile cache.")
    wanted = sorted([MANIFEST, *manifest.parts])
    if sorted(parts) != wanted:
        odd = sorted({*parts} ^ {*wanted}) or [name for name in parts if parts.count(name) > 1]
        raise ConfigError(f"{file}: its manifest and its contents differ in {odd[0][:80]!r}.")
    return manifest


def read_entry(file: Path, archive: zipfile.ZipFile, name: str, entry: BundleEntry) -> bytes:
    """One part of the archive, after checking its size and hash."""
    data = read_part(file, archive, name, entry.size)
    if len(data) != entry.size or digest(data) != entry.sha256:
        raise ConfigError(
            f"{file}: entry {name!r} is not what its manifest says: it was damaged or changed. "
            "Copy the bundle again."
        )
    return data


def read_part(file: Path, archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    """Read a member of the archive of at most `most` bytes."""
    with archive.open(name) as stream:
        data = stream.read(most + 1)
    if len(data) > most:
        raise ConfigError(f"{file}: {name!r} has more than the {most} bytes that it should have.")
    return data


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
