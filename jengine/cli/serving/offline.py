"""`jengine run-batch` after flag parsing: opens files, starts an engine, delivers results.

In: flags, server and engine settings. Out: progress counts.
"""

from __future__ import annotations

import argparse
import http.client
import logging
import os
import shutil
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

from jengine.assembly.engine import Engine
from jengine.assembly.located import checked_elsewhere, located
from jengine.assembly.processes.engine_process import shown, start_engine_process
from jengine.cli.serve import engine_args
from jengine.client.address import is_url
from jengine.errors import ConfigError, JengineError
from jengine.server.batches.batch_runner import BatchFiles, BatchProgress
from jengine.server.batches.files import ResultFile
from jengine.server.offline import run_batch
from jengine.server.settings import ServerSettings


def answer_files(arguments: argparse.Namespace, settings: ServerSettings) -> BatchProgress:
    """Answer a batch file on an engine process; results for URLs are sent there and deleted
    here."""
    args = engine_args(arguments)

    def start() -> Engine:
        # The core runs in a separate process, so steps and request handling do not share a CPU.
        return start_engine_process(
            located(args, checked_elsewhere(args)), shown(args.show_progress)
        )

    folder = arguments.output_tmp_dir
    names = [name for name in (arguments.output_file, arguments.error_file) if name is not None]
    with ExitStack() as stack:
        paths = [local_output(name, folder) for name in names]
        outputs = [stack.enter_context(ResultFile(path)) for path in paths]
        lines = stack.enter_context(opened(arguments.input_file, folder))
        batch = BatchFiles(lines, *outputs, longest=settings.max_body_bytes)
        progress = run_batch(settings, start, batch, enable_metrics=arguments.enable_metrics)
        for name, path in zip(names, paths, strict=True):
            if is_url(name):
                send(path, name)
                path.unlink()
    return progress


logger = logging.getLogger(__name__)
# Timeout of a stalled transfer, in seconds.
SILENCE = 300.0
TRIES, PAUSE = 5, 5.0


class TransferFailed(JengineError):
    """A file could not be fetched or sent."""


def opened(name: str, folder: str | None) -> BinaryIO:
    """Open an input file. A URL is first downloaded to an unnamed file in `folder`: a server would
    time out while its lines are answered."""
    if not is_url(name):
        try:
            return Path(name).open("rb")
        except OSError as error:
            raise ConfigError(f"{name!r} cannot be read: {error.strerror}.") from error
    file: BinaryIO = tempfile.TemporaryFile(dir=folder)  # type: ignore[assignment]  # noqa: SIM115
    try:
        with urllib.request.urlopen(name, timeout=SILENCE) as response:  # noqa: S310 - see is_url
            shutil.copyfileobj(response, file)
            if response.length:
                raise TransferFailed(f"{name} ended {response.length} bytes too early.")
    except (OSError, http.client.HTTPException) as error:
        raise TransferFailed(f"{name} cannot be fetched: {error}.") from error
    file.seek(0)
    return file


def local_output(name: str, folder: str | None) -> Path:
    """Path to write results to: `name`, or for a URL a file in `folder` from which an interrupted
    batch resumes. Without a folder, a new temporary file."""
    if not is_url(name):
        return Path(name)
    if folder is None:
        handle, path = tempfile.mkstemp(prefix="jengine_batch_", suffix=".jsonl")
        os.close(handle)
        return Path(path)
    return Path(folder) / f"jengine_batch_{blake2b(name.encode(), digest_size=8).hexdigest()}.jsonl"


def send(file: Path, url: str) -> None:
    """PUT a file, with retries. Raises TransferFailed and keeps the file."""
    for left in reversed(range(TRIES)):
        try:
            put(file, url)
            return
        except (OSError, http.client.HTTPException) as error:
            if not left:
                raise TransferFailed(
                    f"{url} did not take the results: {error}. They are in {file}."
                ) from error
            logger.warning("%s did not take the results: %s. Trying again in %g s.",
                           url, error, PAUSE)  # fmt: skip
            time.sleep(PAUSE)


def put(file: Path, url: str) -> None:
    headers = {"Content-Type": "application/jsonl", "Content-Length": str(file.stat().st_size)}
    with file.open("rb") as data:
        request = urllib.request.Request(url, data, headers, method="PUT")  # noqa: S310
        with urllib.request.urlopen(request, timeout=SILENCE):  # noqa: S310
            pass
