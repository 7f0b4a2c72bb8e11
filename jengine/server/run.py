"""A server process: socket, uvicorn, engine start-up, signals and exit status.

In: settings, and a function that starts an engine. Out: an exit status: 0 after a signal, 1 if the
engine could not be started or has died. The socket is open and /health answers while the engine
loads. Must not know command-line flags.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType
from typing import Any, Final

import uvicorn
import uvloop
from starlette.applications import Starlette

from jengine.assembly.engine import Engine
from jengine.errors import JengineError
from jengine.open_files import allow_connections
from jengine.server.app import make_app
from jengine.server.batches.batches import Batches
from jengine.server.http.listening import listening_socket, url_of
from jengine.server.http.patience import PatientProtocol
from jengine.server.peers.channel import Peers
from jengine.server.phase import Phase
from jengine.server.serving.draining import drain
from jengine.server.serving.monitor import monitor
from jengine.server.serving.peer_answers import answer_peer
from jengine.server.serving.served_adapters import load_modules
from jengine.server.serving.service import Service
from jengine.server.settings import ServerSettings

logger = logging.getLogger(__name__)
# Seconds for connections to close after the last response.
LAST_SECONDS = 1
# Starts an engine; takes a callback for progress messages.
Start = Callable[[Callable[[str], None]], Engine]
Ready = Callable[[Engine, str], None]


def run_server(
    settings: ServerSettings,
    start: Start,
    when_ready: Ready,
    sock: socket.socket | None = None,
    peers: Peers | None = None,
) -> int:
    """Serve until a signal arrives or the engine dies.

    Args:
        sock: a listening socket, which other processes may share.
        peers: these other API processes.

    Returns:
        The exit status.
    """
    return_large_blocks()
    sock = sock or listening_socket(settings)
    url = url_of(settings, sock)
    app = make_app(None, settings, peers)
    server = DrainingServer(
        uvicorn_config(app, settings), app.state.service, sock, app.state.batches
    )
    server.config.load()

    async def work() -> None:
        service = server.service
        await service.peers.serve(lambda question: answer_peer(service, question))
        beside = [
            asyncio.ensure_future(server.start_engine(start, lambda one: when_ready(one, url))),
            asyncio.ensure_future(server.watch()),
        ]
        await server.serve([sock])
        for task in beside:
            task.cancel()

    # uvloop: with asyncio's own loop a short stream takes a third longer.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work())
        if not server.force_exit:  # else exit immediately, and the child processes with it
            server.service.shutdown()
    return server.status


def uvicorn_config(app: Starlette, settings: ServerSettings) -> uvicorn.Config:
    """Configure uvicorn with h11, whose parser bounds the size of a request's head."""
    if settings.disable_access_log_for_endpoints:
        quiet = frozenset(settings.disable_access_log_for_endpoints.split(","))
        logging.getLogger("uvicorn.access").addFilter(partial(is_shown, quiet))
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        uds=settings.uds,
        http=PatientProtocol,
        h11_max_incomplete_event_size=settings.max_header_bytes,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level=settings.uvicorn_log_level,
        access_log=not settings.disable_uvicorn_access_log,
        server_header=False,
        timeout_keep_alive=settings.timeout_keep_alive,
        timeout_graceful_shutdown=LAST_SECONDS,
        ssl_keyfile=settings.ssl_keyfile,
        ssl_certfile=settings.ssl_certfile,
        ssl_ca_certs=settings.ssl_ca_certs,
        ssl_cert_reqs=settings.ssl_cert_reqs,
        ssl_ciphers=settings.ssl_ciphers,
    )


def is_shown(quiet: frozenset[str], record: logging.LogRecord) -> bool:
    """Whether a line of the access log is of none of the `quiet` paths."""
    assert isinstance(record.args, tuple), "uvicorn logs client, method, path, version, status"
    return str(record.args[2]).split("?")[0] not in quiet


class DrainingServer(uvicorn.Server):
    """uvicorn server that drains on the first signal and exits when the engine has died."""

    def __init__(
        self,
        config: uvicorn.Config,
        service: Service,
        sock: socket.socket,
        batches: Batches | None = None,
    ) -> None:
        super().__init__(config)
        self.batches = batches
        self.service = service
        self.listening = sock
        self.status = 0
        self._signals = 0
        self._draining: asyncio.Task[None] | None = None

    def _log_started_message(self, listeners: Sequence[socket.SocketType]) -> None:
        """Suppressed: readers of that line expect that requests are answered."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain on the first SIGTERM or Ctrl-C, exit immediately on the second."""
        self._signals += 1
        if self._signals > 1:
            self.should_exit = self.force_exit = True
            return
        logger.info("%s: shutting down.", signal.Signals(sig).name)
        asyncio.get_running_loop().call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        async def work() -> None:
            await drain(self.service)
            self.should_exit = True

        self._draining = asyncio.ensure_future(work())

    async def start_engine(self, start: Start, when_ready: Callable[[Engine], None]) -> None:
        """Start the engine in a thread, then serve with it."""
        try:
            engine = await in_daemon_thread(lambda: self._started(start))
        except JengineError as error:
            self._give_up(" ".join(str(error).split()))
        except Exception as error:
            logger.error("The engine could not be started", exc_info=error)
            self._give_up(f"{type(error).__name__}: {error}")
        else:
            if self._signals:
                engine.client.shutdown()
                return
            self.service.adopt(engine)
            if self.batches is not None:
                self.batches.resume()
            allow_connections(self.service.live.admission.most)
            gc.collect()
            gc.freeze()  # exempt loaded objects, which stay, from later collections
            when_ready(engine)
            logging.getLogger("uvicorn.error").info("Application startup complete.")
            super()._log_started_message([self.listening])

    def _started(self, start: Start) -> Engine:
        """Start the engine and load its adapters."""
        engine = start(self.service.note_progress)
        load_modules(engine, self.service.settings.lora_modules)
        return engine

    def _give_up(self, why: str) -> None:
        logger.critical("The server ends: %s", why)
        self.service.phase = Phase.DEAD
        self.status = 1
        self.should_exit = True

    async def watch(self) -> None:
        """Monitor the engine; exit the process when it has died."""
        await monitor(self.service)
        if not self._signals and not self.status:
            # Let responses that fail with the engine be sent first.
            await asyncio.sleep(LAST_SECONDS)
            self._give_up("the engine has stopped. The log above has the cause.")


async def in_daemon_thread(work: Callable[[], Any]) -> Any:
    """Run a function in a daemon thread, which does not keep the process from exiting."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if result.cancelled():
            return
        if error is None:
            result.set_result(value)
        else:
            result.set_exception(error)

    def run() -> None:
        value, failed = None, None
        try:
            value = work()
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            failed = error
        loop.call_soon_threadsafe(settle, value, failed)

    threading.Thread(target=run, name="jengine-start", daemon=True).start()
    return await result


# glibc serves large blocks by mmap, but raises that threshold (up to 32 MiB) once some are freed.
# Large blocks then come from the heap and fragment it, so a server grows with what clients send.
# Not for processes that run steps, which reuse large blocks.

M_MMAP_THRESHOLD: Final = -3  # glibc's constant
LARGE = 2**20


def return_large_blocks() -> None:
    """Make glibc return freed blocks of 1 MiB and more to the system, by mallopt."""
    try:
        tune = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    tune(M_MMAP_THRESHOLD, LARGE)
