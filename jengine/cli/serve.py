"""`jengine serve`: the OpenAI API over HTTP, for one model.

In: a model and flags, with vLLM's names. Out: a server that runs until a signal comes. It listens
before the engine is loaded, so that health is answered from the first moment.
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Callable
from typing import Any

from jengine.assembly.args import EngineArgs
from jengine.assembly.engine import Engine
from jengine.assembly.engine_process import shown, start_engine_process
from jengine.cli.flags import add_engine_flags, engine_arguments
from jengine.cli.main import OpenLLM
from jengine.cli.parser import Parser
from jengine.cli.serve_box import box_of
from jengine.cli.serve_flags import add_server_flags, server_settings
from jengine.cli.serve_logs import configure_server_logs
from jengine.cli.terminal import Terminal
from jengine.engine.process.messages import Progress
from jengine.errors import ConfigError
from jengine.server.run import run_server
from jengine.server.settings import ServerSettings

logger = logging.getLogger(__name__)

USAGE = "MODEL [flags]"
EXAMPLES = """\
examples:
  jengine serve demo
  jengine serve ./model --port 8080 --api-key secret --served-model-name mine
  curl http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \\
       -d '{"prompt": "Once upon a time", "max_tokens": 32}'
"""


def add_flags(parser: Parser) -> None:
    """The flags of this command."""
    parser.add_argument("model", metavar="MODEL", nargs="?", help="a model folder, or demo")
    parser.add_argument("--model", dest="model_flag", help=argparse.SUPPRESS)
    parser.add_argument(
        "--profiler-dir", metavar="DIR", help="where the admin route /start_profile writes traces"
    )
    add_server_flags(parser)
    add_engine_flags(parser)


def run(arguments: argparse.Namespace, terminal: Terminal, open_llm: OpenLLM) -> int:
    """Serve until the end."""
    arguments.model = arguments.model or arguments.model_flag
    if arguments.model is None:
        raise ConfigError("MODEL is missing: give a model folder, or demo.")
    settings = server_settings(arguments, os.environ)
    args = engine_args(arguments)
    configure_server_logs(settings.uvicorn_log_level, debug=arguments.debug)

    def ready(engine: Engine, url: str) -> None:
        terminal.note(box_of(engine, settings, url))

    warn_if_open(settings)
    return run_server(settings, lambda note: start_engine(args, note), ready)


def engine_args(arguments: argparse.Namespace) -> EngineArgs:
    """The engine's settings; a server logs its figures unless told not to."""
    given: dict[str, Any] = {"disable_log_stats": False, **engine_arguments(arguments)}
    if arguments.profiler_dir is not None:
        given["profiler_config"] = {"profiler": "jax", "dir": arguments.profiler_dir}
    return EngineArgs.checked("jengine serve", model=arguments.model, **given)


def start_engine(args: EngineArgs, note: Callable[[str], None]) -> Engine:
    """The engine, whose core has a process of its own: steps and requests do not share a CPU."""
    bars = shown(args.show_progress)

    def tell(progress: Progress) -> None:
        bars(progress)
        note(in_words(progress))

    return start_engine_process(args, tell)


def in_words(progress: Progress) -> str:
    """How far the start is, for the answer of /health."""
    words = progress.stage
    if progress.total:
        words += f": {progress.done:g} of {progress.total:g} {progress.unit}".rstrip()
    if progress.seconds_left is not None:
        words += f", about {progress.seconds_left:.0f} s left"
    return words


def warn_if_open(settings: ServerSettings) -> None:
    """Warn if others than this machine may reach the server without a key."""
    local = settings.uds is not None or settings.host in ("127.0.0.1", "::1", "localhost")
    if not local and not settings.api_key:
        logger.warning(
            "--host %s without --api-key: whoever reaches this port can use the model.",
            settings.host,
        )
