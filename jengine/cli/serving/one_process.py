"""`jengine serve` with one API process, and the engine core in a separate process.

In: settings of server and engine. Out: the server's exit status.
"""

from __future__ import annotations

from collections.abc import Callable

from jengine.assembly.engine import Engine
from jengine.assembly.located import checked_elsewhere, located
from jengine.assembly.processes.engine_process import shown, start_engine_process
from jengine.assembly.settings.args import EngineArgs
from jengine.cli.progress_words import in_words
from jengine.cli.serving.box import box_of
from jengine.cli.terminal import Terminal
from jengine.engine.process.to_front import Progress
from jengine.server.run import run_server
from jengine.server.settings import ServerSettings


def serve(settings: ServerSettings, args: EngineArgs, terminal: Terminal) -> int:
    """Serve until a signal."""

    def start(note: Callable[[str], None]) -> Engine:
        bars = shown(args.show_progress)

        def tell(progress: Progress) -> None:
            bars(progress)
            note(in_words(progress))

        note("looks up the model, and downloads what of it is not here")
        # The core runs in a separate process, so steps and request handling do not share a CPU.
        return start_engine_process(located(args, checked_elsewhere(args)), tell)

    def ready(engine: Engine, url: str) -> None:
        terminal.note(box_of(engine, settings, url))

    return run_server(settings, start, ready)
