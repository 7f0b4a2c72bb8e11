"""Answers a batch file without HTTP, by an engine started for it.

In: settings, a function that starts an engine, a batch. Out: progress counts. Must not know
command-line flags.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import uvloop
from prometheus_client import start_http_server

from jengine.assembly.engine import Engine
from jengine.errors import ConfigError
from jengine.server.app import asked_routes
from jengine.server.batches.batch_runner import BatchFiles, BatchProgress, patient, run_lines
from jengine.server.batches.files import Finished
from jengine.server.batches.route_calls import asker
from jengine.server.serving.monitor import monitor
from jengine.server.serving.service import Service
from jengine.server.settings import ServerSettings

logger = logging.getLogger(__name__)


def run_batch(
    settings: ServerSettings,
    start: Callable[[], Engine],
    batch: BatchFiles,
    *,
    enable_metrics: bool = False,
) -> BatchProgress:
    """Answer all lines of a batch that have no result yet."""
    finished = batch.finished()
    if finished:
        logger.info(
            "%s: goes on after %d lines that have results.", batch.results.path, len(finished)
        )
    service = Service(settings)
    with metrics_server(service) if enable_metrics else nullcontext():
        service.adopt(start())
        progress = BatchProgress(earlier=len(finished))
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(work(service, batch, progress, finished))
        finally:
            service.shutdown()
        return progress


async def work(
    service: Service, batch: BatchFiles, progress: BatchProgress, finished: Finished
) -> None:
    """Run the batch while monitoring the engine."""
    watching = asyncio.ensure_future(monitor(service))
    # A full batch and as many queued, so that the engine is never short of work.
    seats = asyncio.Semaphore(2 * service.live.engine.schedule.max_num_seqs)
    try:
        await run_lines(
            batch, patient(service, asker(asked_routes(service))), seats, progress.count, finished
        )
    finally:
        watching.cancel()


@contextmanager
def metrics_server(service: Service) -> Iterator[None]:
    """Serve Prometheus metrics at the settings' host and port."""
    host, port = service.settings.host, service.settings.port
    try:
        server, _ = start_http_server(port, host, service.registry)
    except OSError as error:
        raise ConfigError(
            f"--port {port}: no metrics can be served there ({error.strerror}). Choose another."
        ) from error
    logger.info("Metrics: http://%s:%d/metrics", host, server.server_port)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
