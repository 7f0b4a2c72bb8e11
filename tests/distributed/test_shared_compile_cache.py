"""Processes of an engine use one folder of compiled programs, or none."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import pytest

from jengine.distributed import shared_compile_cache
from jengine.distributed.shared_compile_cache import agree_on_compile_cache, is_shared


class Meeting:
    """Threads in place of processes, which agree on the least number."""

    def __init__(self, count: int) -> None:
        self.given: list[int] = []
        self.barrier = threading.Barrier(count)

    def least(self, number: int) -> int:
        self.given.append(number)
        self.barrier.wait(10)
        found = min(self.given)
        if self.barrier.wait(10) == 0:
            self.given.clear()
        self.barrier.wait(10)
        return found


def answers(folders: Sequence[Path | None]) -> list[bool]:
    meeting = Meeting(len(folders))
    with ThreadPoolExecutor(len(folders)) as pool:
        numbered = enumerate(folders)
        return list(pool.map(lambda one: is_shared(one[1], meeting.least, one[0]), numbered))


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_compile_cache, "SEEN_WITHIN", 0.1)


def test_processes_agree_whether_they_share_a_folder(tmp_path: Path) -> None:
    own = [tmp_path / name for name in "ab"]
    for folder in own:
        folder.mkdir()
    assert answers([own[0]] * 3) == [True] * 3
    assert answers([own[0], own[1]]) == [False] * 2
    assert answers([own[0], own[0], own[1]]) == [False] * 3
    assert answers([own[0], None]) == answers([None, own[0]]) == [False] * 2
    assert answers([own[0], tmp_path / "not there"]) == [False] * 2
    blocked = tmp_path / "file"
    blocked.touch()
    assert answers([blocked / "folder"] * 2) == [False] * 2
    assert [*own[0].iterdir(), *own[1].iterdir()] == []


def test_a_folder_that_is_not_shared_is_not_used_by_any(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # What the second of two processes says and hears.
    heard: list[Callable[[int], int]] = [lambda n: n, lambda n: 0, lambda n: 0, lambda n: n]
    before = jax.config.values["jax_compilation_cache_dir"]
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    try:
        agree_on_compile_cache(lambda number: heard.pop(0)(number), process=1)
        assert jax.config.values["jax_compilation_cache_dir"] is None
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
    assert f"which is {tmp_path} here" in caplog.text and heard == []
