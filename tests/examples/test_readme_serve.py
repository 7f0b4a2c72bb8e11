"""README's section "Serve": its commands and its Python run as they stand there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jengine.bench.serve.launched import our_server

ROOT = Path(__file__).parents[2]
SECTION = (
    (ROOT / "README.md").read_text(encoding="utf-8").split("\n## Serve\n")[1].split("\n## ")[0]
)
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", SECTION, flags=re.DOTALL)
COMMANDS = [line for kind, text in BLOCKS if not kind for line in text.splitlines() if line]
PROGRAMS = [text for kind, text in BLOCKS if kind == "python"]
ADDRESS = "http://127.0.0.1:8000"
# What a command must print, by the word after its program.
PRINTED = {
    "chat": "68",
    f"{ADDRESS}/v1/completions": '"text_completion"',
    "bench": "Successful requests:                     20",
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    program, command, *words = shlex.split(COMMANDS[0])
    assert (program, command) == ("jengine", "serve")
    with our_server(words[0], words[1:]) as found:
        yield found


@pytest.mark.parametrize("line", COMMANDS[1:], ids=lambda line: " ".join(line.split()[:2]))
def test_a_command(line: str, url: str) -> None:
    words = shlex.split(line)
    wanted = PRINTED[words[1]]
    assert ADDRESS in line
    words = [word.replace(ADDRESS, url) for word in words]
    program = [sys.executable, "-m", "jengine"] if words[0] == "jengine" else [words[0], "-sS"]
    done = subprocess.run(
        [*program, *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and wanted in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program(program: str, url: str) -> None:
    assert ADDRESS in program
    code = program.replace(ADDRESS, url)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "68" in done.stdout, done.stdout + done.stderr


def test_every_command_is_checked() -> None:
    assert len(COMMANDS) == 1 + len(PRINTED) and len(PROGRAMS) == 1
