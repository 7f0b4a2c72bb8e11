"""Program of one of several API processes.

In: a job on standard input, and a listening socket. Out: its server's exit status.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from jengine.assembly.engine import Engine
from jengine.assembly.processes.deployment import deployment_of
from jengine.assembly.processes.engine_process import connect_cores, core_return
from jengine.assembly.settings.args import EngineArgs
from jengine.cli.leaving import leave
from jengine.cli.progress_words import in_words
from jengine.cli.serving.box import box_of
from jengine.cli.serving.logs import configure_server_logs
from jengine.cli.terminal import standard_terminal
from jengine.server.peers.board import Board
from jengine.server.peers.channel import Peers
from jengine.server.phase import Phase
from jengine.server.run import run_server
from jengine.server.settings import ServerSettings

# Files in the directory shared by the server's processes.
BOARD = "board"
CORES = "cores"
GLANCE = 0.05


class ApiJob(msgspec.Struct, frozen=True):
    """Job of an API process, read from standard input at startup."""

    index: int
    folder: str  # shared by the server's processes
    listening: int  # file descriptor of the listening socket
    settings: dict[str, Any]  # of ServerSettings
    engine: dict[str, Any]  # keyword arguments of EngineArgs
    debug: bool


def main() -> int:
    job = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=ApiJob)
    settings = msgspec.convert(job.settings, ServerSettings)
    configure_server_logs(
        settings.uvicorn_log_level, debug=job.debug, process_name=f"ApiServer_{job.index}"
    )
    folder = Path(job.folder)
    board = Board.shared(folder / BOARD, job.index)
    args = EngineArgs.checked("jengine serve", **job.engine)

    def start(note: Callable[[str], None]) -> Engine:
        addresses = wait_for(folder / CORES)
        engine = connect_cores(
            deployment_of(args), addresses, lambda progress: note(in_words(progress))
        )
        if args.ranks.elsewhere:
            core_return(engine).follow(addresses, lambda: addresses_in(folder / CORES))
        return engine

    def ready(engine: Engine, url: str) -> None:
        if job.index == 0:
            threading.Thread(
                target=show_when_all_serve,
                args=(board, lambda: box_of(engine, settings, url)),
                name="jengine-box",
                daemon=True,
            ).start()

    sock = socket.socket(fileno=job.listening)
    return run_server(settings, start, ready, sock, Peers(board, folder))


def wait_for(file: Path) -> list[str]:
    """Wait until the supervisor has written the cores' addresses, and return them."""
    while not file.exists():
        time.sleep(GLANCE)
    return addresses_in(file)


def addresses_in(file: Path) -> list[str]:
    return msgspec.msgpack.decode(file.read_bytes(), type=list[str])


def show_when_all_serve(board: Board, box: Callable[[], str]) -> None:
    """Print the startup box once all processes take requests."""
    while board.worst_phase(0) is Phase.STARTING:
        time.sleep(GLANCE)
    if board.worst_phase(0).takes_requests:
        standard_terminal().note(box())


if __name__ == "__main__":
    leave(main())
