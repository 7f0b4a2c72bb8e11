"""A bundle comes out as it went in, and only where it belongs."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jengine.errors import ConfigError
from jengine.runner.disk.machine import Machine, instructions, this_machine
from jengine.runner.disk.warm_bundle import (
    MANIFEST,
    Manifest,
    load_bundle,
    read_manifest,
    save_bundle,
    used_entries,
)

HERE = Machine(
    jengine="1", jax="2", jaxlib="3", system="Linux x86_64", platform="cpu", platform_version="cpu",
    device="cpu", devices=1, instructions=["avx", "avx2"], xla_flags=[],
)  # fmt: skip
BARE = Manifest(format=1, model="m", settings={"seed": 1}, machine=HERE, directory=None, entries={})
CONTENTS = {"jit_step-0a-cache": b"one" * 100, "jit_<lambda>-1b-cache": b"two"}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    folder = tmp_path / "there"
    folder.mkdir()
    for name, data in CONTENTS.items():
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture
def bundle(tmp_path: Path, cache: Path) -> Path:
    save_bundle(tmp_path / "warm.zip", cache, CONTENTS, BARE)
    return tmp_path / "warm.zip"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


def load(file: Path, directory: Path, **options: Any) -> Any:
    machine = options.pop("machine", HERE)
    return load_bundle(file, directory, machine, **{"names_directory": False, **options})


def rewritten(file: Path, change: Any) -> Path:
    """The same archive with its parts changed by a function of a dict."""
    with zipfile.ZipFile(file) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(parts[MANIFEST])
    change(parts, manifest)
    if MANIFEST in parts:
        parts[MANIFEST] = json.dumps(manifest).encode()
    other = file.with_name("other.zip")
    with zipfile.ZipFile(other, "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return other


def test_it_comes_out_as_it_went_in_and_private(bundle: Path, here: Path) -> None:
    loaded = load(bundle, here)
    assert sorted(loaded.written) == sorted(CONTENTS)
    assert {file.name: file.read_bytes() for file in here.iterdir()} == CONTENTS
    assert {file.stat().st_mode & 0o777 for file in [bundle, *here.iterdir()]} == {0o600}
    assert (read_manifest(bundle).model, read_manifest(bundle).size) == ("m", 303)
    again = load(bundle, here)
    assert sorted(again.there) == sorted(CONTENTS) and not again.written


def test_what_was_compiled_here_stays_unless_it_may_go(bundle: Path, here: Path) -> None:
    mine = here / "jit_step-0a-cache"
    mine.write_bytes(b"mine")
    loaded = load(bundle, here)
    assert loaded.kept == [mine.name] and mine.read_bytes() == b"mine"
    assert load(bundle, here, overwrite=True).written == [mine.name]
    assert mine.read_bytes() == CONTENTS[mine.name]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"jax": "9"}, "jax: 2 there, 9 here"),
        ({"device": "other"}, "device: cpu there, other here"),
        ({"devices": 4}, "devices: 1 there, 4 here"),
        ({"instructions": ["avx", "sse"]}, "instructions: avx2 there, sse here"),
        ({"xla_flags": ["--a"]}, "xla flags: no others there, --a here"),
    ],
)
def test_another_kind_of_machine_is_named(
    bundle: Path, here: Path, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        load(bundle, here, machine=msgspec.structs.replace(HERE, **change))
    assert not list(here.iterdir())


def test_programs_named_after_a_directory_are_refused_elsewhere(
    tmp_path: Path, cache: Path, here: Path, bundle: Path
) -> None:
    with pytest.raises(ConfigError, match="depend on: none there"):
        load(bundle, here, names_directory=True)
    named = msgspec.structs.replace(BARE, directory=str(here))
    save_bundle(tmp_path / "named.zip", cache, CONTENTS, named)
    assert load(tmp_path / "named.zip", here, names_directory=True).written
    with pytest.raises(ConfigError, match="here there"):
        load(tmp_path / "named.zip", cache, names_directory=True)


def out_of_the_directory(parts: dict[str, bytes], manifest: dict[str, Any]) -> None:
    parts["entries/../../evil"] = parts.pop("entries/jit_step-0a-cache")
    manifest["entries"]["../../evil"] = manifest["entries"].pop("jit_step-0a-cache")


def damaged(parts: dict[str, bytes], _: dict[str, Any]) -> None:
    parts["entries/jit_step-0a-cache"] = b"eno" * 100


def too_long(parts: dict[str, bytes], _: dict[str, Any]) -> None:
    parts["entries/jit_step-0a-cache"] += b"more"


def one_more(parts: dict[str, bytes], _: dict[str, Any]) -> None:
    parts["entries/another"] = b""


def of_the_future(_: dict[str, bytes], manifest: dict[str, Any]) -> None:
    manifest["format"] = 2


def with_an_odd_key(_: dict[str, bytes], manifest: dict[str, Any]) -> None:
    manifest["odd"] = 2


def without_manifest(parts: dict[str, bytes], _: dict[str, Any]) -> None:
    del parts[MANIFEST]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (out_of_the_directory, "not a file name of a compile cache"),
        (damaged, "damaged or changed"),
        (too_long, "more than the 300 bytes"),
        (one_more, "differ in 'entries/another'"),
        (of_the_future, "format 2, expected 1"),
        (with_an_odd_key, "manifest cannot be read"),
        (without_manifest, "has no manifest"),
    ],
)
def test_a_bundle_that_is_not_right_is_refused_whole(
    bundle: Path, here: Path, change: Any, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load(rewritten(bundle, change), here)
    assert not list(here.iterdir()) and not (here.parent / "evil").exists()


def test_a_file_that_is_no_archive_or_cut_short_is_refused(bundle: Path, here: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load(here / "nothing", here)
    bundle.write_bytes(bundle.read_bytes()[:-40])
    with pytest.raises(ConfigError, match="damaged or no bundle"):
        load(bundle, here)


def test_used_files_are_those_that_were_opened_in_the_directory(cache: Path, here: Path) -> None:
    (cache / "jit_step-0a-cache").read_bytes()
    (cache / "other-atime").write_bytes(b"")
    with used_entries(cache) as used:
        (cache / "jit_<lambda>-1b-cache").read_bytes()
        (cache / "new-cache").write_bytes(b"")
        (cache / "gone-cache").write_bytes(b"")
        (cache / "other-atime").read_bytes()
        (here / "elsewhere-cache").write_bytes(b"")
    (cache / "gone-cache").unlink()
    (cache / "jit_step-0a-cache").read_bytes()
    assert used.names == ["jit_<lambda>-1b-cache", "new-cache"]


def test_this_machine_is_like_itself(tmp_path: Path) -> None:
    one = this_machine()
    assert one.differences(this_machine()) == [] and one.instructions
    listing = tmp_path / "cpuinfo"
    listing.write_text("processor : 0\nflags : fpu vmx avx2 sse4_1 ssse3 ibrs bmi1\nflags : x\n")
    assert instructions(listing) == ["avx2", "bmi1", "sse4_1", "ssse3"]


LIBRARY = f"{'0a' * 8}-{'1b' * 8}.so"


@pytest.fixture
def with_kernels(tmp_path: Path, cache: Path) -> Path:
    library = tmp_path / LIBRARY
    library.write_bytes(b"machine code")
    save_bundle(tmp_path / "kernels.zip", cache, CONTENTS, BARE, library)
    return tmp_path / "kernels.zip"


def test_kernels_are_written_into_a_folder_of_their_own(with_kernels: Path, here: Path) -> None:
    libraries = here / "libraries"
    libraries.mkdir()
    assert read_manifest(with_kernels).size == 303 + 12
    loaded = load(with_kernels, here, libraries=lambda: libraries)
    assert sorted(loaded.written) == sorted([*CONTENTS, LIBRARY])
    library = libraries / LIBRARY
    assert library.read_bytes() == b"machine code" and library.stat().st_mode & 0o777 == 0o600
    library.write_bytes(b"compiled here")
    assert load(with_kernels, here, libraries=lambda: libraries).kept == [LIBRARY]
    assert library.read_bytes() == b"compiled here"


def test_nothing_is_written_where_the_folder_of_kernels_is_refused(
    with_kernels: Path, here: Path
) -> None:
    def refused() -> Path:
        raise ConfigError("the folder belongs to another user")

    with pytest.raises(ConfigError, match="another user"):
        load(with_kernels, here, libraries=refused)
    assert not list(here.iterdir())


def test_kernels_that_were_changed_or_have_odd_names_are_refused(
    with_kernels: Path, here: Path
) -> None:
    def changed(parts: Any, manifest: Any) -> None:
        parts[f"kernels/{LIBRARY}"] = b"other code!!"

    def renamed(parts: Any, manifest: Any) -> None:
        manifest["kernels"]["../evil.so"] = manifest["kernels"].pop(LIBRARY)
        parts["kernels/../evil.so"] = parts.pop(f"kernels/{LIBRARY}")

    for change, word in ((changed, "damaged or changed"), (renamed, "not a file name")):
        with pytest.raises(ConfigError, match=word):
            load(rewritten(with_kernels, change), here, libraries=lambda: here)
        assert not list(here.iterdir())
