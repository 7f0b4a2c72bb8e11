"""`jengine serve --api-server-count N`: a supervisor, its cores, and N HTTP processes.

In: settings of server and engine. Out: exit status. This process starts and stops the others.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from jengine.assembly.processes.deployment import Deployment, deployment_of
from jengine.assembly.processes.engine_process import shown
from jengine.assembly.processes.own_cores import OwnCores
from jengine.assembly.settings.args import EngineArgs
from jengine.assembly.settings.setting import SERVER
from jengine.cli.serving.api_process import BOARD, CORES, ApiJob
from jengine.confined.owned_process import OwnedProcess
from jengine.engine.process.client import ProcessClient
from jengine.engine.process.private_folder import PrivateFolder
from jengine.engine.process.startup import Tell
from jengine.server.http.listening import listening_socket
from jengine.server.peers.board import Board
from jengine.server.settings import ServerSettings
from jengine.server.supervisor import Supervisor

logger = logging.getLogger(__name__)
PROGRAM = "jengine.cli.serving.api_process"
WHERE = "--api-server-count"


def serve_with_several(
    settings: ServerSettings, args: EngineArgs, count: int, *, debug: bool
) -> int:
    """Serve until a signal with `count` API processes."""
    deployment = deployment_of(args)
    cores = OwnCores(deployment)
    sock = listening_socket(settings)
    shared = PrivateFolder()
    try:
        Board.create(shared.path / BOARD, count)
        supervisor = Supervisor(settings, Board.shared(shared.path / BOARD, 0))
        supervisor.prepare(lambda: started(cores, shown(args.show_progress), shared.path / CORES))
        supervisor.start(
            [
                api_process(ApiJob(
                    index, str(shared.path), sock.fileno(), msgspec.to_builtins(settings),
                    engine_settings(deployment, index), debug,
                ))
                for index in range(count)
            ]
        )  # fmt: skip
        logger.info("Started %d API server processes.", count)
        sock.close()  # or it would go on accepting connections when all API processes have ended
        return supervisor.run()
    finally:
        cores.shutdown()
        shared.remove()


def started(cores: OwnCores, tell: Tell, file: Path) -> Sequence[ProcessClient]:
    """Start cores, publish their addresses, and wait until they are ready."""
    cores.expect_others()
    cores.launch()
    addresses = cores.addresses(tell)
    write_addresses(file, addresses)

    def back(rank: int, address: str) -> None:
        addresses[rank] = address
        write_addresses(file, addresses)

    cores.when_back(back)
    cores.wait_until_ready(tell)
    return cores.clients


def write_addresses(file: Path, addresses: Sequence[str]) -> None:
    """Publish the cores' addresses atomically for the API processes."""
    complete = file.with_suffix(".new")
    complete.write_bytes(msgspec.msgpack.encode(addresses))
    os.replace(complete, file)


def api_process(job: ApiJob) -> OwnedProcess:
    """An API process, not yet started."""
    name = f"API process {job.index}"
    return OwnedProcess(name, PROGRAM, msgspec.msgpack.encode(job), {}, open_files=[job.listening])


def engine_settings(deployment: Deployment, index: int) -> dict[str, object]:
    """Serialisable engine settings; only one process logs the cores' statistics."""
    quiet = deployment.args.disable_log_stats or index > 0
    return deployment.told(SERVER, WHERE, disable_log_stats=quiet)
