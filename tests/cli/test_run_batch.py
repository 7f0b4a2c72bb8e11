"""`jengine run-batch` as a program in front of a scripted engine process."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from jengine.bench.marathon.server import free_port
from jengine.cli.main import main
from tests.server.listening import until

ROOT = Path(__file__).parent.parent.parent
COUNT = 300
SCRIPTED = ["--executor", "tests.server.scripted:Executor", "--max-num-seqs", "4"]
SLOWLY = ["--executor-options.step_seconds", "0.005"]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Requests, and where their answers will be."""
    lines = [
        {
            "custom_id": f"number-{number}",
            "method": "POST",
            "url": "/v1/completions",
            "body": {"prompt": f"It is {number}", "max_tokens": 4, "ignore_eos": True},
        }
        for number in range(COUNT)
    ]
    given = tmp_path / "in.jsonl"
    given.write_text("\n".join(json.dumps(line) for line in lines))
    return given, tmp_path / "out.jsonl"


@contextmanager
def program(files: tuple[Path, Path], *flags: str) -> Iterator[subprocess.Popen[str]]:
    words = ["run-batch", "demo", "-i", str(files[0]), "-o", str(files[1]), *SCRIPTED, *flags]
    command = [sys.executable, "-m", "jengine", *words]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_lines(file: Path, count: int, process: subprocess.Popen[str]) -> None:
    def are_there() -> bool:
        assert process.poll() is None, process.communicate()[1]
        return file.exists() and file.read_bytes().count(b"\n") > count

    until(are_there, lambda: "no lines", 120)


def ids(file: Path) -> list[str]:
    return [json.loads(line)["custom_id"] for line in file.read_text().splitlines()]


@pytest.mark.slow
def test_a_killed_batch_goes_on_and_has_every_line_once(files: tuple[Path, Path]) -> None:
    _, out = files
    with program(files, *SLOWLY) as process:
        wait_for_lines(out, 20, process)
        below = psutil.Process(process.pid).children(recursive=True)
        process.kill()
    before = out.read_bytes().count(b"\n")
    assert 20 < before < COUNT
    until(lambda: not any(map(is_alive, below)), lambda: str(below))
    with program(files) as process:
        log = process.communicate(timeout=120)[1]
        assert process.returncode == 0, log
    assert f"goes on after {before} lines" in log
    assert f"{COUNT - before} lines done, 0 of them failed, and {before} before" in log
    assert sorted(ids(out)) == sorted(f"number-{number}" for number in range(COUNT))
    assert "Traceback" not in log


def is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@pytest.mark.slow
def test_metrics_while_it_runs(files: tuple[Path, Path]) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/metrics"
    flags = ["--enable-metrics", "--port", str(port), "--metrics-compat", "vllm"]
    with program(files, *SLOWLY, *flags) as process:
        wait_for_lines(files[1], 1, process)
        text = urllib.request.urlopen(url, timeout=30).read().decode()
        found = re.findall(r"^vllm:request_success_total\{.*length.*\} (\S+)$", text, re.M)
        assert found and float(found[0]) > 0
        process.wait(120)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-i", "{0}/none.jsonl", "-o", "{0}/out"], "none.jsonl' cannot be read"),
        (["-i", "{0}/in", "-o", "{0}/none/out"], "none/out cannot be written"),
        (["-i", "{0}/in", "-o", "{0}/in"], "is no result of a batch"),
        (["-i", "{0}/in", "-o", "{0}/out", "--error-file", "{0}/out"], "another process writes"),
    ],
)
def test_files_that_cannot_be_are_refused_before_the_start(
    tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").write_text('{"custom_id": "a"}\n')
    assert main(["run-batch", "demo", *[word.format(tmp_path) for word in words]]) == 1
    assert message in capsys.readouterr().err
    assert (tmp_path / "in").read_text() == '{"custom_id": "a"}\n'


def test_flags(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run-batch", "demo", "-i", "in", "-o", "out", "--api-key", "x"])
    assert "unknown flag --api-key" in capsys.readouterr().err, "what has no effect is no flag"
    with pytest.raises(SystemExit):
        main(["run-batch", "--help"])
    told = capsys.readouterr().out
    assert all(flag in told for flag in ("--output-tmp-dir", "--tool-call-parser", "--dtype"))
