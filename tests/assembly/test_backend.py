"""Who waits for the CPU's kernels to be compiled is told so, if it takes long."""

from __future__ import annotations

import time

import pytest

from jengine.assembly import backend, progress
from pallas_kernels.choice import cpu_library_folder


@pytest.mark.parametrize(("wanted", "shown"), [("auto", True), ("cpu", False), ("xla", True)])
def test_a_wait_for_the_kernels_is_explained(
    wanted: str, shown: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waits: list[str] = []

    def compiling() -> None:
        waits.append("")
        end = time.monotonic() + (60 if shown else 0.05)
        while not waits[0] and time.monotonic() < end:
            time.sleep(0.005)
            waits[0] += capsys.readouterr().err

    monkeypatch.setattr(progress, "SLOW", 0.01)
    monkeypatch.setattr(backend, "cpu_problem", compiling)
    backend.await_kernels(wanted, shown=shown)
    said = ("".join(waits) + capsys.readouterr().err).splitlines()
    assert len(waits) == (wanted != "xla")
    if waits and shown:
        assert len(said) == 1 and "compiling the CPU kernels" in said[0]
        assert str(cpu_library_folder()) in said[0]
    else:
        assert not said
