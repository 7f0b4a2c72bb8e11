"""The library of kernels: found again, kept private, and a clear word where it cannot be made."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from pallas_kernels.cpu import background, build, compiler, library
from pallas_kernels.cpu.compiler import NoKernels
from tests.models.tiny_models import write_tiny_native
from tests.server.listening import until

ROOT = Path(__file__).parents[3]


def test_the_folder_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = build.private_folder()
    assert folder.stat().st_mode & 0o077 == 0
    assert build.private_folder() == folder
    folder.chmod(0o777)
    with pytest.raises(NoKernels, match=r"written by other users: chmod go-w"):
        build.private_folder()


def test_a_library_that_others_may_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "made-up-compiler")
    monkeypatch.setattr(compiler, "compiler_version", lambda _: "1.0")
    file = build.private_folder() / f"{compiler.library_name(('made-up-compiler',))}"
    file.touch(0o666)
    file.chmod(0o666)
    with pytest.raises(NoKernels, match="written by other users"):
        build.compiled_library()


def test_a_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(NoKernels, match="belongs to another user"):
        build.private_folder()


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


def test_a_library_is_named_after_all_that_it_depends_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_headers = tmp_path
    (tmp_path / compiler.INTERFACE).parent.mkdir(parents=True)
    (tmp_path / compiler.INTERFACE).write_text("// of another jaxlib")
    monkeypatch.setattr(compiler, "compiler_version", lambda _: "1.0")
    usual = compiler.library_name(("g++",))
    assert compiler.library_name(("g++",)) == usual
    assert compiler.library_name(("g++", "-O1")) != usual
    changes = {
        "compiler_version": lambda _: "1.1",
        "processor_features": lambda: "flags: fewer",
        "target_flags": lambda: ("-march=x86-64",),
        "headers": lambda: other_headers,
    }
    for name, other in changes.items():
        with monkeypatch.context() as changed:
            changed.setattr(compiler, name, other)
            assert compiler.library_name(("g++",)) != usual


def made_up_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Let $CXX be a program in Python that answers --version."""
    script = folder / "compiler.py"
    script.write_text(
        f"import sys\nif '--version' in sys.argv: sys.exit(0)\n{program}", encoding="utf-8"
    )
    monkeypatch.setenv("CXX", f"{sys.executable} {script}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))


def test_a_compiler_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_up_compiler(
        tmp_path, monkeypatch, "print('In file: a\\nerror: no such flag')\nsys.exit(1)"
    )
    with pytest.raises(NoKernels, match="failed: error: no such flag"):
        build.compiled_library()
    assert not list(build.private_folder().iterdir())


def test_a_compiler_without_a_version_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", f"{sys.executable} -c 'import sys; sys.exit(\"no such flag\")'")
    with pytest.raises(NoKernels, match="--version failed: no such flag"):
        build.compiled_library()


def test_a_compiler_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = f"import os, time; open({str(tmp_path)!r} + f'/pid-{{os.getpid()}}', 'w').close()\n"
    made_up_compiler(tmp_path, monkeypatch, program + "time.sleep(60)")
    monkeypatch.setattr(build, "LONGEST_COMPILE_S", 1.0)
    monkeypatch.setattr(
        build.Jobs, "_look", lambda jobs, look=build.Jobs._look: began(tmp_path) and look(jobs)
    )
    with pytest.raises(NoKernels, match="took longer than"):
        build.compiled_library()
    assert not any(Path("/proc", str(process)).exists() for process in began(tmp_path))
    assert not list(build.private_folder().iterdir())


def began(folder: Path) -> list[int]:
    """The compilers that said their number in a file's name."""
    return [int(file.name.removeprefix("pid-")) for file in folder.glob("pid-*")]


# Ends this process as soon as the compiler has said its number, before anything else is done.
DIES_AT_ONCE = """
import os, pathlib, subprocess, time
class Popen(subprocess.Popen):
    def __init__(self, *given, **options):
        super().__init__(*given, **options)
        while options["stdin"] == subprocess.DEVNULL:
            if pathlib.Path("pid").exists(): os.kill(os.getpid(), 9)
            time.sleep(0.01)
subprocess.Popen = Popen
"""


@pytest.mark.parametrize("before", ["", DIES_AT_ONCE], ids=["later", "at once"])
def test_compilers_end_with_a_process_that_is_killed(tmp_path: Path, before: str) -> None:
    driver = "sleep 600 & echo $! > number; mv number pid; wait"
    code = (
        f"{before}from pathlib import Path; from pallas_kernels.cpu.build import Jobs\n"
        f"with Jobs() as jobs: jobs.run([['sh', '-c', {driver!r}]], Path())"
    )
    paths = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=paths) as asking:
        until((tmp_path / "pid").exists)
        asking.kill()
    compiler = int((tmp_path / "pid").read_text())
    until(lambda: not psutil.pid_exists(compiler) or psutil.Process(compiler).status() == "zombie")


def test_what_killed_processes_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = build.private_folder()
    for name, age in (("old", 2000), ("new", 0)):
        work = folder / (build.WORK + name)
        work.mkdir()
        (work / "half.o").write_text("half")
        os.utime(work, (time.time() - age, time.time() - age))
    build.remove_abandoned(folder)
    assert [found.name for found in folder.iterdir()] == [build.WORK + "new"]


def test_a_folder_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jengine").write_text("a file where the folder would be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(
        NoKernels, match=r"no folder for the compiled kernels: .*Set XDG_CACHE_HOME"
    ):
        build.private_folder()


def test_a_process_that_ends_ends_its_compilers(tmp_path: Path) -> None:
    """A process of its own, whose compilation is not waited for."""
    script = tmp_path / "slow_compiler.py"
    script.write_text(
        "import os, sys, time\n"
        "if '--version' in sys.argv: sys.exit(0)\n"
        f"open({str(tmp_path)!r} + '/pid-' + str(os.getpid()), 'w').close()\n"
        "time.sleep(60)",
        encoding="utf-8",
    )
    program = (
        "import pathlib, sys, time; from pallas_kernels.cpu import background\n"
        "background.begin(); assert 'jax' not in sys.modules\n"
        f"while not list(pathlib.Path({str(tmp_path)!r}).glob('pid-*')): time.sleep(0.02)"
    )
    environment = {
        **os.environ, "CXX": f"{sys.executable} {script}", "XDG_CACHE_HOME": str(tmp_path),
    }  # fmt: skip
    subprocess.run([sys.executable, "-c", program], env=environment, cwd=ROOT, check=True)
    compilers = began(tmp_path)
    assert compilers and not any(Path("/proc", str(process)).exists() for process in compilers)
    assert not list((tmp_path / "jengine" / "kernels").iterdir())


def test_where_there_is_a_compiler_the_kernels_are_compiled() -> None:
    """Else tests of the kernels would be skipped because of an error in their source."""
    try:
        compiler.compiler_version(compiler.find_compiler())
    except NoKernels as reason:
        pytest.skip(str(reason))
    assert library.problem() is None


@pytest.mark.slow
def test_an_engine_without_a_compiler_runs_on_xla(tmp_path: Path) -> None:
    """In a process of its own, where nothing is loaded yet."""
    folder = write_tiny_native(tmp_path, "llama", num_hidden_layers=1, hidden_size=16)
    program = (
        "import logging, jengine; logging.basicConfig(level=logging.WARNING)\n"
        f"llm = jengine.LLM({str(folder)!r}, skip_tokenizer_init=True, max_num_seqs=2,"
        " max_model_len=64, max_num_batched_tokens=64, enforce_eager=True, show_progress=False)\n"
        "params = jengine.SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)\n"
        "print(llm.generate([[5, 6, 7]], params))"
    )
    environment = {**os.environ, "CXX": "/nonexistent/g++", "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=ROOT, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line for line in done.stderr.splitlines() if "/nonexistent/g++" in line]
    assert len(lines) == 1 and "run on XLA" in lines[0]


def test_a_machine_without_a_compiler_takes_a_library_that_was_carried_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> tuple[str, ...]:
        raise NoKernels("there is no C++ compiler.")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "find_compiler", missing)
    folder = build.private_folder()
    (folder / f"{'0' * 16}-{'1' * 16}.so").touch(0o600)  # for another processor
    with pytest.raises(NoKernels, match="no C\\+\\+ compiler"):
        build.compiled_library()
    carried = folder / f"{compiler.runnable_key()}-{'1' * 16}.so"
    carried.touch(0o600)
    assert build.compiled_library() == carried
    carried.chmod(0o602)
    with pytest.raises(NoKernels, match="written by other users"):
        build.compiled_library()


def test_every_source_file_is_in_one_unit() -> None:
    included = "".join(compiler.units()).splitlines()
    wanted = [f'#include "{file.name}"' for file in compiler.sources() if file.suffix == ".cc"]
    assert sorted(included) == sorted(wanted)


def test_names_of_source_files_do_not_clash(tmp_path: Path) -> None:
    """Several files are compiled as one unit: a name of one must not hide that of another."""
    try:
        found = compiler.find_compiler()
    except NoKernels as error:
        pytest.skip(str(error))
    whole = tmp_path / "whole.cc"
    whole.write_text("".join(compiler.units()))
    command = [*compiler.compile_command(found), "-fsyntax-only", str(whole)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("platforms", "plugins", "begins"),
    [("cpu", True, True), ("", False, True), ("", True, False), ("cuda,cpu", False, False)],
)
def test_compiling_begins_before_jax_where_it_has_only_cpus(
    platforms: str, plugins: bool, begins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    monkeypatch.setattr(background.importlib.util, "find_spec", lambda _: plugins or None)
    begun: list[None] = []
    monkeypatch.setattr(background, "begin", lambda: begun.append(None))
    background.begin_if_jax_has_only_cpus()
    assert bool(begun) == begins


def test_the_kernels_compile_where_there_is_a_compiler() -> None:
    """Other tests of the kernels are skipped where they do not."""
    try:
        compiler.find_compiler()
    except NoKernels:
        pytest.skip("there is no compiler")
    assert library.problem() is None
