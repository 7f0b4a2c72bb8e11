"""Runs a peer engine in a separate process on the same trace, alternating with jengine: A B A B.

In: the peer's name, its Python and the work. Out: seconds of each run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Self

from jengine.errors import ConfigError, JengineError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

PROGRAMS = Path(__file__).parent / "peers"
# Prints those of the packages in its arguments that its Python does not have.
MISSING = """
import sys
from importlib.util import find_spec
print(*(name for name in sys.argv[1:] if find_spec(name) is None), sep=", ")
"""


class PeerProgram(NamedTuple):
    """A program in PROGRAMS, and the packages that it needs."""

    file: str
    packages: tuple[str, ...]


PEERS = {
    "transformers": PeerProgram("transformers_peer.py", ("torch", "transformers")),
    "vllm": PeerProgram("vllm_peer.py", ("vllm",)),
    "mlx": PeerProgram("mlx_peer.py", ("mlx", "mlx_lm")),
    "llama.cpp": PeerProgram("llama_cpp_peer.py", ("llama_cpp",)),
}


class PeerFailed(JengineError, RuntimeError):
    """The peer's process exited or sent an unexpected message."""


def check_name(name: str) -> None:
    """Raise ConfigError unless there is a program for this peer."""
    if name not in PEERS:
        known = ", ".join((*PEERS, "deterministic", "plain"))
        raise ConfigError(f"--against {name!r}: expected one of {known}.")


def check_peer(name: str, python: str | None) -> None:
    """Raise ConfigError if this Python cannot run the peer. Does not import it."""
    check_name(name)
    command = [python or sys.executable, "-c", MISSING, *PEERS[name].packages]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    except (OSError, subprocess.CalledProcessError) as error:
        raise ConfigError(f"{name}: {command[0]} cannot be run: {error}.") from error
    if missing := done.stdout.strip():
        raise ConfigError(
            f"--against {name}: {command[0]} has no {missing}. Name a Python that has it with "
            "--peer-python."
        )


@dataclass(frozen=True)
class PeerWork:
    """Settings sent to the peer's process."""

    model: str
    trace: str
    dtype: str
    max_num_seqs: int
    max_model_len: int
    prefix_caching: bool
    load_format: str = "auto"
    memory_share: float = 0.9  # of a GPU
    speculative_config: dict[str, Any] | None = None  # drafts that the peer makes too


def trace_peer(name: str, python: str | None, settings: PeerWork) -> PeerProcess:
    """Start one of PEERS with the Python that has it installed."""
    check_name(name)
    return PeerProcess(name, [python or sys.executable, str(PROGRAMS / PEERS[name].file)], settings)


class PeerProcess:
    """A peer process with its model loaded, ready to run."""

    def __init__(self, name: str, command: list[str], settings: DataclassInstance) -> None:
        self.name = name
        # A file, not a pipe, which would have to be read while the peer writes.
        self._errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in __exit__
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the program that the user named
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
                text=True,
            )  # fmt: skip
        except OSError as error:
            raise ConfigError(f"{name}: {command[0]} cannot be run: {error}.") from error
        ready = self.ask(asdict(settings))
        self.version, self.startup_s = ready["ready"], ready["startup_s"]

    def run(self, trace: Path | None = None) -> tuple[float, int]:
        """Run the trace once, or another one if the peer reads several; returns (seconds, generated
        tokens)."""
        answer = self.ask({"run": True} if trace is None else {"run": True, "trace": str(trace)})
        return answer["seconds"], answer["generated"]

    def ask(self, words: dict[str, Any]) -> dict[str, Any]:
        """Send one line, and wait for the answer's. Raises PeerFailed if the process has ended."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(words) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended; its output says why
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            last = " / ".join(self._errors.read().strip().splitlines()[-3:])
            raise PeerFailed(
                f"{self.name} ended with status {self._process.returncode}: {last or 'no message'}"
            )
        return json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                stream.close()
