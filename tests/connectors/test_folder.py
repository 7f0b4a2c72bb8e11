"""Contents in a folder: they survive restarts, damaged ones are misses, the folder is bounded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jengine.connectors.choice import worker_half
from jengine.connectors.folder import FolderIndex, FolderStore, file_of, folder_of
from jengine.connectors.settings import FolderSettings, TransferSettings
from jengine.errors import ConfigError

KEY, OTHER = b"k" * 36, b"o" * 36


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path, "model")


def test_what_was_written_is_found_by_another_engine(store: FolderStore, tmp_path: Path) -> None:
    index = FolderIndex(tmp_path, "model")
    assert not index.holds(KEY, "")
    store.write(KEY, b"content")
    assert index.holds(KEY, "") and not index.holds(OTHER, "")
    assert FolderStore(tmp_path, "model").read(KEY, "") == b"content"
    assert not FolderIndex(tmp_path, "another model").holds(KEY, "")


@pytest.mark.parametrize("damage", ["cut", "changed", "emptied", "renamed"])
def test_damaged_files_are_misses_and_are_removed(
    store: FolderStore, tmp_path: Path, damage: str
) -> None:
    store.write(KEY, b"content")
    path = Path(file_of(folder_of(tmp_path, "model"), KEY))
    found, key = path.read_bytes(), KEY
    if damage == "cut":
        path.write_bytes(found[:-1])
    elif damage == "changed":
        path.write_bytes(found[:-1] + b"T")
    elif damage == "emptied":
        path.write_bytes(b"")
    else:  # a content under the name of another one
        key = OTHER
        store.write(OTHER, b"other")
        os.replace(path, path := Path(file_of(folder_of(tmp_path, "model"), OTHER)))
    assert store.read(key, "") is None
    assert not path.exists()
    assert not FolderIndex(tmp_path, "model").holds(key, "")


def test_those_not_read_for_the_longest_time_are_removed_first(tmp_path: Path) -> None:
    store = FolderStore(tmp_path, "model", most_bytes=1000)
    keys = [bytes([number]) * 36 for number in range(8)]
    for key in keys[:4]:
        store.write(key, b"x" * 150)
    assert store.read(keys[0], "") is not None
    for key in keys[4:]:
        store.write(key, b"x" * 150)
        assert store.total <= 1000
    index = FolderIndex(tmp_path, "model")
    assert not index.holds(keys[1], "") and index.holds(keys[-1], "")
    again = FolderStore(tmp_path, "model", most_bytes=1000)
    assert again.total == store.total > 0
    store.write(b"l" * 36, b"x" * 2000)
    assert not index.holds(b"l" * 36, "")


def test_after_a_reset_older_files_are_not_used(store: FolderStore, tmp_path: Path) -> None:
    index = FolderIndex(tmp_path, "model")
    store.write(KEY, b"content")
    os.utime(file_of(folder_of(tmp_path, "model"), KEY), (1, 1))
    index.reset()
    assert not index.holds(KEY, "")
    store.write(KEY, b"content")
    assert index.holds(KEY, "")
    index.forget(KEY)
    assert store.read(KEY, "") is None


def test_a_file_that_is_removed_while_it_is_read_stays_readable(tmp_path: Path) -> None:
    store = FolderStore(tmp_path, "model")
    store.write(KEY, b"content")
    data = store.read(KEY, "")
    assert isinstance(data, memoryview)  # of the file, without a copy
    FolderIndex(tmp_path, "model").forget(KEY)
    assert store.read(KEY, "") is None and data == b"content"


def test_a_block_costs_no_path_objects_and_no_buffered_file(
    store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt looks up and reads hundreds of them before its first token."""
    index = FolderIndex(tmp_path, "model")
    store.write(KEY, b"content")
    made: list[str] = []
    for name in ("__truediv__", "open", "__fspath__"):
        used = getattr(Path, name)

        def counted(*args: object, used: object = used, name: str = name) -> object:
            made.append(name)
            assert callable(used)
            return used(*args)

        monkeypatch.setattr(Path, name, counted)
    assert index.holds(KEY, "") and store.read(KEY, "") == b"content"
    assert made == []


PIECES = ("-left", "-right")


def test_a_content_is_there_when_every_process_has_stored_its_piece(tmp_path: Path) -> None:
    left, right = (FolderStore(tmp_path, "model" + piece) for piece in PIECES)
    index = FolderIndex(tmp_path, "model", PIECES)
    left.write(KEY, b"le")
    assert not index.holds(KEY, "")
    right.write(KEY, b"ft")
    assert index.holds(KEY, "")
    assert (left.read(KEY, ""), right.read(KEY, "")) == (b"le", b"ft")
    os.utime(file_of(folder_of(tmp_path, "model-right"), KEY), (1, 1))
    index.reset()
    left.write(KEY, b"le")
    assert not index.holds(KEY, ""), "the right piece is of before the reset"
    right.write(KEY, b"ft")
    assert index.holds(KEY, "")
    index.forget(KEY)
    assert left.read(KEY, "") is None and right.read(KEY, "") is None


def test_a_folder_that_processes_do_not_share_is_refused(tmp_path: Path) -> None:
    FolderStore(tmp_path, "model-left")
    with pytest.raises(ConfigError, match=r"model-right, .*the hosts of all processes share"):
        FolderIndex(tmp_path, "model", PIECES)


def test_pieces_share_the_limit_of_a_folder(tmp_path: Path) -> None:
    settings = TransferSettings(1, folder=FolderSettings(str(tmp_path), 1000))
    left, right = (worker_half(settings, "model", PIECES, process) for process in (0, 1))
    for number in range(8):
        for store in (left, right):
            assert isinstance(store, FolderStore)
            store.write(bytes([number]) * 36, b"x" * 150)
    sizes = [path.stat().st_size for path in tmp_path.rglob("*.kv")]
    assert 0 < sum(sizes) <= 1000
