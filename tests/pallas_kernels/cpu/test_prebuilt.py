"""Which of the wheel's libraries a processor is given, and what is preferred to them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pallas_kernels.choice import compiled_cpu_library, cpu_compiler
from pallas_kernels.cpu import build, compiler, library, prebuilt

NEWEST = (
    "flags : fpu "
    + " ".join(sorted(prebuilt.V4))
    + " avx512_bf16 avx512_vnni amx_tile amx_bf16 amx_int8"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel's libraries, on a machine that has no compiler of its own."""
    for one in prebuilt.BUILDS:
        (tmp_path / prebuilt.file_name(one)).touch()
    monkeypatch.setattr(prebuilt, "FOLDER", tmp_path)
    monkeypatch.setattr(prebuilt.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(prebuilt, "processor_features", lambda: NEWEST)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(compiler.shutil, "which", lambda _: None)
    return tmp_path


@pytest.mark.parametrize(
    ("machine", "missing", "chosen"),
    [
        ("x86_64", "", "amx"),
        ("x86_64", "amx_tile", "avx512-bf16"),
        ("x86_64", "avx512_bf16", "avx512"),
        ("x86_64", "avx512vl", "avx2"),
        ("x86_64", "fma", "basic"),
        ("aarch64", "avx2", "neon"),
    ],
)
def test_a_processor_is_given_the_best_it_runs(
    machine: str, missing: str, chosen: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = " ".join(word for word in NEWEST.split() if word != missing)
    monkeypatch.setattr(prebuilt, "processor_features", lambda: features)
    monkeypatch.setattr(prebuilt.platform, "machine", lambda: machine)
    assert build.compiled_library().name.startswith(f"{chosen}-{compiler.source_digest()}-xla")


def test_a_machine_of_another_kind_has_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prebuilt.platform, "machine", lambda: "riscv64")
    assert prebuilt.prebuilt_library() is None


def test_libraries_of_other_sources_or_interfaces_are_passed_over(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as changed:
        changed.setattr(prebuilt, "source_digest", lambda: "0" * 12)
        assert prebuilt.prebuilt_library() is None
    header = tmp_path / "other" / prebuilt.INTERFACE
    header.parent.mkdir(parents=True)
    header.write_text("#define XLA_FFI_API_MAJOR 77\n")
    monkeypatch.setattr(prebuilt, "headers", lambda: tmp_path / "other")
    assert prebuilt.prebuilt_library() is None


def test_a_named_compiler_comes_first(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", f"{sys.executable} -c 'import sys; sys.exit(\"asked\")'")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(compiler.NoKernels, match="asked"):
        build.compiled_library()


def test_what_came_with_the_wheel_is_not_carried_to_other_machines(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "FOLDER", folder)
    monkeypatch.setattr(library, "loaded_file", prebuilt.prebuilt_library)
    assert compiled_cpu_library() is None
    assert cpu_compiler() == "the build of this wheel"
