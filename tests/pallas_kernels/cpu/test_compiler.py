"""The library of kernels: found again, kept private, and a clear word where it cannot be made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pallas_kernels.cpu import compiler
from pallas_kernels.cpu.compiler import NoKernels

ROOT = Path(__file__).parents[3]


def test_the_folder_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = compiler.private_folder()
    assert folder.stat().st_mode & 0o077 == 0
    assert compiler.private_folder() == folder
    folder.chmod(0o777)
    with pytest.raises(NoKernels, match=r"written by other users: chmod go-w"):
        compiler.private_folder()


def test_a_library_that_others_may_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "made-up-compiler")
    monkeypatch.setattr(compiler, "compiler_version", lambda _: "1.0")
    library = compiler.private_folder() / f"{compiler.library_key(('made-up-compiler',))}.so"
    library.touch(0o666)
    library.chmod(0o666)
    with pytest.raises(NoKernels, match="written by other users"):
        compiler.compiled_library()


def test_a_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(NoKernels, match="belongs to another user"):
        compiler.private_folder()


def test_compilers_are_looked_for_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "ccache g++-13 -DX='a b'")
    assert compiler.find_compiler() == ("ccache", "g++-13", "-DX=a b")
    monkeypatch.delenv("CXX")
    monkeypatch.setattr(compiler.shutil, "which", {"clang++": "/usr/bin/clang++"}.get)
    assert compiler.find_compiler() == ("/usr/bin/clang++",)
    monkeypatch.setattr(compiler.shutil, "which", lambda _: None)
    monkeypatch.setattr(compiler.importlib.util, "find_spec", lambda _: object())
    assert compiler.find_compiler() == (sys.executable, "-m", "ziglang", "c++")
    monkeypatch.setattr(compiler.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(NoKernels, match=r"Install g\+\+ or clang\+\+, or pip install"):
        compiler.find_compiler()


def test_a_library_is_named_after_all_that_it_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "compiler_version", lambda _: "1.0")
    usual = compiler.library_key(("g++",))
    assert compiler.library_key(("g++",)) == usual
    assert compiler.library_key(("g++", "-O1")) != usual
    changes = {
        "compiler_version": lambda _: "1.1",
        "processor_features": lambda: "flags: fewer",
        "target_flags": lambda: ("-march=x86-64",),
        "headers": lambda: [],
    }
    for name, other in changes.items():
        with monkeypatch.context() as changed:
            changed.setattr(compiler, name, other)
            assert compiler.library_key(("g++",)) != usual


def test_a_compiler_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", f"{sys.executable} -c 'import sys; sys.exit(\"no such flag\")'")
    with pytest.raises(NoKernels, match="no such flag"):
        compiler.compiled_library()
    assert not list(tmp_path.rglob("*.so"))


def test_an_engine_without_a_compiler_runs_on_xla(tmp_path: Path) -> None:
    """In a process of its own, where nothing is loaded yet."""
    program = (
        "import logging, jengine; logging.basicConfig(level=logging.WARNING)\n"
        "llm = jengine.LLM('demo', max_num_seqs=2, max_model_len=64, enforce_eager=True,"
        " show_progress=False)\n"
        "print(llm.generate('Once', jengine.SamplingParams(max_tokens=2)))"
    )
    environment = {**os.environ, "CXX": "/nonexistent/g++", "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=ROOT, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line for line in done.stderr.splitlines() if "/nonexistent/g++" in line]
    assert len(lines) == 1 and "run on XLA" in lines[0]
