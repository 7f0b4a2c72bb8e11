"""Launchers of examples/multihost under real schedulers on this machine, where they are installed:
processes meet, and one that fails ends all and is named with its host.

The program is spmd.py with something lighter than an engine in its place (`launched.py`).
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.multihost.launch import free_port

ROOT = Path(__file__).parents[2]
MULTIHOST = ROOT / "examples" / "multihost"
PROGRAM = [sys.executable, str(ROOT / "tests" / "examples" / "launched.py")]
SECONDS = 240  # to start, on cores that are shared with others
ENDS_WITHIN = 10
HOST = socket.gethostname()
# Debian has Slurm's daemons where only root looks for programs.
PATHS = f"{os.environ['PATH']}:/usr/sbin"
pytestmark = pytest.mark.slow


@dataclass
class Launcher:
    """How to start three processes, and what it says when the second fails."""

    script: str
    flags: list[str]
    named: str
    environment: dict[str, str] = field(default_factory=dict)
    before: list[str] = field(default_factory=list)


@contextmanager
def ssh(folder: Path) -> Iterator[Launcher]:
    """A server for this user alone, which three names of this machine reach."""
    port = free_port()
    for name in ("host", "user"):
        key = folder / name
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    (folder / "sshd.conf").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nPidFile {folder}/pid\n"
        f"AuthorizedKeysFile {folder}/user.pub\nStrictModes no\nUsePAM no\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    options = " ".join(
        f"-o {option}"
        for option in ("BatchMode=yes", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null")
    )
    environment = {
        "SSH": f"ssh -q -p {port} -i {folder}/user {options}",
        "ENVIRONMENT": f"PYTHONPATH={ROOT} JAX_PLATFORMS=cpu NPROC=16",
    }
    with daemon(["sshd", "-D", "-f", folder / "sshd.conf"], folder):
        until(lambda: ran([*environment["SSH"].split(), "localhost", "echo here"], {}) == "here\n")
        hosts = "127.0.0.1,localhost,127.0.0.1"
        yield Launcher("ssh.sh", [hosts], "process 1 on localhost failed: status", environment)


@contextmanager
def openmpi(folder: Path) -> Iterator[Launcher]:
    yield Launcher(
        "openmpi.sh",
        ["localhost:3"],
        rf"rank 1 with PID \d+ on node {HOST} exited|Process name: \[\[\d+,1\],1\]",
        {"MPIRUN_FLAGS": "--allow-run-as-root --oversubscribe"},
    )


@contextmanager
def slurm(folder: Path) -> Iterator[Launcher]:
    """A cluster of this machine."""
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    (folder / "slurm.conf").write_text(
        f"""ClusterName=test
SlurmctldHost={HOST}(127.0.0.1)
SlurmctldPort={free_port()}
SlurmdPort={free_port()}
AuthInfo=socket={folder}/munge
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}
SlurmdSpoolDir={folder}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SlurmdParameters=config_overrides
NodeName={HOST} NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""
    )
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    munge = ["munged", "--force", "-F", f"--socket={folder}/munge", f"--key-file={key}"]
    munge += [f"--{name}-file={folder}/munge.{name}" for name in ("pid", "log", "seed")]
    configuration = str(folder / "slurm.conf")
    environment = {"SLURM_CONF": configuration}
    with (
        daemon(munge, folder),
        daemon(["slurmctld", "-D", "-c", "-f", configuration], folder),
        daemon(["slurmd", "-D", "-f", configuration], folder),
    ):
        until(lambda: ran(["sinfo", "-h", "-o", "%T"], environment) == "idle\n")
        named = f"srun: error: {HOST}: task 1: "
        yield Launcher("slurm.sh", [], named, environment, ["salloc", "-Q", "-n", "3"])


def ran(command: list[str], environment: dict[str, str]) -> str:
    environment = {**os.environ, **environment, "PATH": PATHS}
    return subprocess.run(command, env=environment, capture_output=True, text=True).stdout


@contextmanager
def daemon(command: list[str | Path], folder: Path) -> Iterator[None]:
    name = Path(command[0]).name
    with (folder / f"{name}.log").open("w") as log:
        command[0] = shutil.which(name, path=PATHS) or name  # sshd wants its whole path
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait(30)


def until(ready: Callable[[], bool], seconds: float = 60) -> None:
    ends = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < ends
        time.sleep(0.2)


LAUNCHERS = {"ssh": (ssh, "sshd"), "openmpi": (openmpi, "mpirun"), "slurm": (slurm, "slurmctld")}


@pytest.fixture(params=LAUNCHERS)
def launcher(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Launcher]:
    made, needed = LAUNCHERS[request.param]
    if shutil.which(needed, path=PATHS) is None:
        pytest.skip(f"{needed} is not installed")
    with made(tmp_path) as found:
        yield found


@dataclass
class Run:
    """A launcher that runs, and what it wrote."""

    process: subprocess.Popen[bytes]
    folder: Path

    @property
    def text(self) -> str:
        return (self.folder / "out").read_text()

    @property
    def numbers(self) -> list[int]:
        """The processes of the program, by rank, as far as they have met."""
        files = sorted(self.folder.glob("*.pid"))
        return [int(text) for file in files if (text := file.read_text())]

    def assert_all_end(self, named: str) -> None:
        """Launcher and program, at once, and the launcher says which process failed where."""
        assert self.process.wait(ENDS_WITHIN) != 0
        assert re.search(named, self.text), self.text
        until(lambda: not any(Path(f"/proc/{number}").exists() for number in self.numbers))


@contextmanager
def started(launcher: Launcher, scenario: str, folder: Path) -> Iterator[Run]:
    folder = folder / "run"
    folder.mkdir()
    script = f"{MULTIHOST}/{launcher.script}"
    command = [*launcher.before, script, *launcher.flags, *PROGRAM]
    environment = {
        **os.environ, **launcher.environment, "PATH": PATHS, "PORT": str(free_port()),
        "JAX_COORDINATOR_PORT": str(free_port()), "PYTHONPATH": str(ROOT), "NPROC": "16",
        "JAX_PLATFORMS": "cpu",
    }  # fmt: skip
    with (folder / "out").open("w") as out:
        process = subprocess.Popen(
            [*command, "--model", f"{scenario}:{folder}"],
            env=environment, cwd=ROOT, stdout=out, stderr=out,
        )  # fmt: skip
        try:
            yield Run(process, folder)
        finally:
            process.terminate()
            process.wait(30)


def test_three_processes_meet(launcher: Launcher, tmp_path: Path) -> None:
    with started(launcher, "sum", tmp_path) as run:
        assert run.process.wait(SECONDS) == 0, run.text
    assert run.text.count("met 0 1 2") == 3, run.text


def test_one_that_raises_ends_all_and_is_named(launcher: Launcher, tmp_path: Path) -> None:
    with started(launcher, "raise", tmp_path) as run:
        until(lambda: "failed: ValueError" in run.text, SECONDS)
        run.assert_all_end(launcher.named)
        assert f"process 1 of 3 on {HOST} failed: ValueError: told to fail" in run.text


def test_one_that_is_killed_ends_all_and_is_named(launcher: Launcher, tmp_path: Path) -> None:
    with started(launcher, "wait", tmp_path) as run:
        until(lambda: len(run.numbers) == 3, SECONDS)
        os.kill(run.numbers[1], signal.SIGKILL)
        run.assert_all_end(launcher.named)
