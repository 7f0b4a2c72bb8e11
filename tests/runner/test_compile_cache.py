"""The persistent compile cache: private, optional by default, required where it was asked for."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache

from jengine.errors import ConfigError
from jengine.runner.disk import compile_cache
from jengine.runner.disk.compile_cache import (
    STAMP,
    enable_compile_cache,
    names_directory,
    remove_broken_entries,
    wait_for_writes,
    what_compiling_costs,
)

SETTINGS = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
    "jax_persistent_cache_enable_xla_caches",
)


@pytest.fixture(autouse=True)
def unconfigured() -> Iterator[None]:
    """JAX as it is in a program that says nothing about caches."""
    before = {name: getattr(jax.config, name) for name in SETTINGS}
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def configured() -> str | None:
    return jax.config.jax_compilation_cache_dir


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "jengine" / "xla"


@pytest.mark.parametrize("wanted", [None, True])
def test_it_is_on_by_default_and_private(home: Path, wanted: bool | None) -> None:
    assert enable_compile_cache(wanted) == home
    assert configured() == str(home)
    assert home.stat().st_mode & 0o777 == 0o700


def test_programs_are_kept_in_the_directory_asked_for_last(tmp_path: Path) -> None:
    for turn, name in enumerate(("one", "two")):
        assert enable_compile_cache(tmp_path / name) == tmp_path / name
        jax.jit(lambda x, turn=turn: x * (turn + 2))(jnp.ones(3))
        assert list((tmp_path / name).glob("*-cache"))


@pytest.mark.slow
def test_a_program_has_the_same_name_in_every_directory(tmp_path: Path) -> None:
    names = []
    for name in ("one", "two"):
        enable_compile_cache(tmp_path / name)
        assert not names_directory()
        jax.jit(lambda x: x * 5 + 2)(jnp.ones(3))
        names.append({file.name for file in (tmp_path / name).glob("*-cache")})
        jax.clear_caches()
    assert names[0] & names[1] == names[0] != set()


def test_a_name_that_holds_the_directory_is_told(tmp_path: Path) -> None:
    jax.config.update("jax_persistent_cache_enable_xla_caches", "xla_gpu_kernel_cache_file")
    assert names_directory()


def test_false_means_none() -> None:
    assert enable_compile_cache(False) is None
    assert configured() is None


def test_a_directory_of_the_users_own_program_is_left_alone(home: Path, tmp_path: Path) -> None:
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "mine"))
    assert enable_compile_cache(None) == tmp_path / "mine"
    assert configured() == str(tmp_path / "mine")
    assert not home.exists()


def test_a_directory_asked_for_wins_over_the_programs_own(tmp_path: Path) -> None:
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "mine"))
    assert enable_compile_cache(tmp_path / "asked") == tmp_path / "asked"


def test_a_path_that_cannot_be_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ConfigError, match=r"'cache_dir'\]=.*/file/below.*cannot create it.*cache-dir"
    ):
        enable_compile_cache(tmp_path / "file" / "below")
    with pytest.raises(ConfigError, match="cannot create it"):
        enable_compile_cache(tmp_path / "file")
    assert configured() is None


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_directory_that_others_may_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    with pytest.raises(ConfigError, match=r"others may write.*chmod 700"):
        enable_compile_cache(shared)


def test_a_directory_of_somebody_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(ConfigError, match="belongs to user"):
        enable_compile_cache(tmp_path)


def test_a_directory_that_is_not_writable_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ConfigError, match="not writable"):
        enable_compile_cache(tmp_path)


def test_without_a_usable_default_the_engine_warns_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        assert enable_compile_cache(None) is None
    assert "without a persistent compile cache" in caplog.text
    assert f"{tmp_path / 'file' / 'jengine' / 'xla'}: cannot create it" in caplog.text
    assert "cache_dir" in caplog.text
    assert configured() is None


def test_without_a_home_the_engine_warns_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with caplog.at_level(logging.WARNING):
        assert enable_compile_cache(None) is None
    assert "home directory" in caplog.text


def test_a_process_that_ends_waits_for_a_file_being_written(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    wait_for_writes()  # there is no directory yet
    assert enable_compile_cache(None) == home
    file = home / "program-cache"
    file.write_bytes(b"half of it")
    os.utime(file, (1, 1))

    here, really = threading.current_thread(), time.sleep

    def sleep(seconds: float) -> None:
        if threading.current_thread() is not here:  # those that other tests have left sleep, too
            return really(seconds)
        waited.append(seconds)
        os.utime(file, (1, 1))

    monkeypatch.setattr(compile_cache.time, "sleep", sleep)
    wait_for_writes()
    assert not waited
    os.utime(file)
    wait_for_writes()
    assert len(waited) == 1


def test_an_entry_that_was_cut_short_gives_no_wrong_result_and_is_replaced(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def compiled() -> Path:
        """The entry of one program, compiled or loaded as a new process would."""
        jax.clear_caches()
        compilation_cache.reset_cache()
        assert jax.jit(lambda x: x * 7 + 3)(jnp.arange(3)).tolist() == [3, 10, 17]
        return next(home.glob("jit__lambda-*-cache"))

    enable_compile_cache(None)
    entry = compiled()
    whole = entry.read_bytes()
    entry.write_bytes(whole[: len(whole) // 2])
    with pytest.warns(UserWarning, match="Error reading persistent compilation cache entry"):
        assert compiled() == entry
    assert len(entry.read_bytes()) < len(whole), "JAX does not replace it"
    remove_broken_entries(home)
    assert entry.exists(), "written so recently, it may not be complete yet"
    os.utime(entry, (1, 1))
    (home / STAMP).unlink()
    with caplog.at_level(logging.WARNING):
        remove_broken_entries(home)
    assert not entry.exists() and f"{entry}: removed" in caplog.text
    assert len(compiled().read_bytes()) > len(whole) // 2


def test_entries_are_checked_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    monkeypatch.setattr(compile_cache, "is_broken", lambda file: bool(checked.append(file.name)))
    now = time.time()
    home.mkdir(parents=True, mode=0o700)
    for name, age in (("a-cache", 5), ("b-cache", 4), ("size-record", 4)):
        (home / name).touch()
        os.utime(home / name, (now - age, now - age))
    enable_compile_cache(None)
    assert checked == ["b-cache", "a-cache"]
    remove_broken_entries(home)
    assert len(checked) == 2


def test_people_who_wait_are_told_what_the_next_start_costs(home: Path) -> None:
    assert "the next start takes as long" in what_compiling_costs()
    enable_compile_cache(None)
    assert f"kept in {home}: the next start loads them" in what_compiling_costs()
