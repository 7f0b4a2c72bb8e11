"""`jengine run-batch` once its flags are known: files opened, an engine started, results sent.

In: flags, settings of server and engine. Out: how many lines have results.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack

from jengine.assembly.engine import Engine
from jengine.assembly.located import checked_elsewhere, located
from jengine.assembly.processes.engine_process import shown, start_engine_process
from jengine.cli.serve import engine_args
from jengine.cli.serving.batch_files import local_output, opened, send
from jengine.client.address import is_url
from jengine.server.batches.files import Results
from jengine.server.batches.runner import BatchFiles, Progress
from jengine.server.offline import run_batch
from jengine.server.settings import ServerSettings


def answer_files(arguments: argparse.Namespace, settings: ServerSettings) -> Progress:
    """Answer a batch, and send what belongs at an address."""
    args = engine_args(arguments)

    def start() -> Engine:
        # Its core is in a separate process: steps and requests do not share a CPU.
        return start_engine_process(
            located(args, checked_elsewhere(args)), shown(args.show_progress)
        )

    folder = arguments.output_tmp_dir
    names = [name for name in (arguments.output_file, arguments.error_file) if name is not None]
    with ExitStack() as stack:
        paths = [local_output(name, folder) for name in names]
        outputs = [stack.enter_context(Results(path)) for path in paths]
        lines = stack.enter_context(opened(arguments.input_file, folder))
        batch = BatchFiles(lines, *outputs, longest=settings.max_body_bytes)
        progress = run_batch(settings, start, batch, enable_metrics=arguments.enable_metrics)
        for name, path in zip(names, paths, strict=True):
            if is_url(name):
                send(path, name)
                path.unlink()
    return progress
