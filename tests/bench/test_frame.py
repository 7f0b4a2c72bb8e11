"""The frame of benchmarks that run servers: flags in, a result out, and its status."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from jengine.bench.server_frame import ServerBenchmark, flag
from jengine.errors import ConfigError


@dataclass(frozen=True)
class Settings:
    model: str
    flags: tuple[str, ...]
    seconds: float = flag(60.0, "how long")


def measured(settings: Settings, log: Path) -> dict[str, Any]:
    if settings.seconds < 0:
        raise ConfigError("--seconds: expected a number above 0.")
    return {"seconds": settings.seconds, "log": log.name, "failed": ["late"] * (log.name == "x")}


BENCH = ServerBenchmark(
    name="waits", about="Waits.", settings=Settings, measure=measured, printed=lambda _: "Done."
)


def test_what_was_measured_is_printed_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "found.json"
    given = ["tiny", "--seconds", "3", "--output-json", str(file), "--", "--port", "0"]
    assert BENCH.main(given) == 0
    words, line = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert words == "Done." and found == json.loads(file.read_text())
    assert (found["bench"], found["seconds"], found["log"]) == ("waits", 3.0, "logs")
    assert found["command"] == "python -m jengine.bench.waits tiny --seconds 3 -- --port 0"
    assert found["commit"] and found["hardware"]
    assert BENCH.main(["--log", "x"]) == 1


def test_a_server_that_cannot_run_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert BENCH.main(["--seconds", "-1"]) == 1
    assert "jengine: error: --seconds: expected" in capsys.readouterr().err
