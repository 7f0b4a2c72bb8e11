"""Entry point of the program `jengine`.

In: arguments. Out: exit status: 0, 1 for an error, 2 for invalid arguments, 130 for Ctrl-C. Must
not know what commands do; only the chosen one is imported.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, cast

import msgspec

import jengine
from jengine.assembly.settings.flags import flag_of
from jengine.cli.interrupts import interrupts_end_the_process
from jengine.cli.leaving import leave
from jengine.cli.parser import Parser
from jengine.cli.terminal import Terminal, standard_terminal
from jengine.errors import ConfigError, JengineError, nearest_name
from pallas_kernels.cpu.background import begin_if_jax_has_only_cpus

if TYPE_CHECKING:
    from jengine import LLM

OpenLLM = Callable[..., "LLM"]

COMMANDS = {
    "demo": "see it work: start the model that ships with jengine and ask it three questions",
    "serve": "answer the OpenAI API over HTTP",
    "run-batch": "answer a file of requests in OpenAI's batch format",
    "route": "pass requests on to several servers, by what they have read before",
    "chat": "talk with a model",
    "generate": "continue prompts",
    "compare": "compare the numbers with torch's",
    "bench": "measure speed: tokens per second, latency, start-up, loading",
    "cache": "carry compiled programs to machines of the same kind",
    "doctor": "check this machine, or whether a model fits it",
    "replay": "run recorded steps again, and compare their tokens",
    "pull": "download a model of the Hugging Face Hub",
    "models": "which models are cached or supported, and what is understood of a folder",
    "plan": "memory and speed of a model on devices that need not be here",
    "simulate": "latencies and cost of replicas that need not be here, for a trace of requests",
    "docs": "open the documentation, or say where it is",
}
OVERVIEW = """\
jengine runs language models with JAX.

usage: jengine COMMAND ...

{commands}

  jengine COMMAND --help   flags of a command
  jengine --version        the version
  jengine COMMAND --debug  on an error, show where it happened

New here? Type: jengine demo
"""


class Command(Protocol):
    """Contents of a command's file."""

    USAGE: str
    EXAMPLES: str

    def add_flags(self, parser: Parser) -> None: ...

    def run(self, arguments: argparse.Namespace, terminal: Terminal, open_llm: OpenLLM) -> int: ...


def open_engine(model: str, **settings: Any) -> LLM:
    """Start an engine; the first use of LLM imports jax."""
    begin_if_jax_has_only_cpus()
    with interrupts_end_the_process():
        return jengine.LLM(model, **settings)


def entry() -> NoReturn:
    """Run the command line and exit the process."""
    leave(main())


def main(
    words: Sequence[str] | None = None,
    *,
    terminal: Terminal | None = None,
    open_llm: OpenLLM = open_engine,
) -> int:
    """Run one command line and return its exit status."""
    words = list(sys.argv[1:] if words is None else words)
    terminal = terminal or standard_terminal()
    try:
        return run_command(words, terminal, open_llm)
    except JengineError as error:
        if "--debug" in words:
            traceback.print_exc(file=terminal.stderr)
        print(f"jengine: error: {' '.join(str(error).split())}", file=terminal.stderr)
        return 1
    except KeyboardInterrupt:
        print(file=terminal.stderr)
        return 130
    except BrokenPipeError:
        # The reader has closed the pipe (`head`). Without this, Python reports it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def run_command(words: list[str], terminal: Terminal, open_llm: OpenLLM) -> int:
    """Show help or the version, or run a command."""
    name = words[0] if words else "--help"
    if name in ("--help", "-h", "help"):
        terminal.write(overview())
        return 0
    if name in ("--version", "-V", "version"):
        terminal.say(f"jengine {jengine.__version__}")
        return 0
    if name not in COMMANDS:
        print(f"jengine: error: unknown command {name!r}.{nearest_name(name, COMMANDS)}"
              f" Commands: {', '.join(COMMANDS)}.", file=terminal.stderr)  # fmt: skip
        return 2
    command = load_command(name)
    parser = command_parser(name, command, terminal)
    arguments = parser.parse(words[1:])
    if file := vars(arguments).get("config"):
        arguments = with_config_file(parser, arguments, file)
    configure_logging(arguments.debug)
    return command.run(arguments, terminal, open_llm)


def load_command(name: str) -> Command:
    """Import a command's file."""
    return cast(Command, importlib.import_module(f"jengine.cli.{name.replace('-', '_')}"))


def command_parser(name: str, command: Command, terminal: Terminal) -> Parser:
    """Parser of a command, with the common flags."""
    parser = Parser(
        prog=f"jengine {name}",
        usage=f"jengine {name} {command.USAGE}",
        description=COMMANDS[name][0].upper() + COMMANDS[name][1:] + ".",
        epilog=command.EXAMPLES,
        stderr=terminal.stderr,
    )
    command.add_flags(parser)
    parser.add_argument("--debug", action="store_true", help="log more, and show where errors are")
    return parser


def overview() -> str:
    """Help text of `jengine` itself."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items()]
    return OVERVIEW.format(commands="\n".join(lines))


def configure_logging(debug: bool) -> None:
    """Log warnings; with --debug, all of jengine's records."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    if debug:
        logging.getLogger("jengine").setLevel(logging.DEBUG)


def with_config_file(parser: Parser, arguments: argparse.Namespace, file: str) -> Any:
    """Merge the file's values; the command line takes precedence."""
    words = list[str]()
    parser.where = f"{file}: "
    for name, value in content(file).items():
        if isinstance(value, list) and not parser.takes_several(flag_of(name)):
            parser.error(f"{name} is a list; expected one value.")
        words += words_of(name, value)
    found = vars(parser.parse(words))
    parser.where = ""
    for name, value in found.items():
        if vars(arguments).get(name, argparse.SUPPRESS) in (parser.get_default(name),
                                                            argparse.SUPPRESS):  # fmt: skip
            setattr(arguments, name, value)
    return arguments


def content(file: str) -> dict[str, Any]:
    """Parse the file. Raises ConfigError."""
    try:
        return msgspec.yaml.decode(Path(file).read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise ConfigError(f"--config {file}: {error.strerror}.") from None
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"--config {file}: expected YAML with a value for each flag, such as `port: 8000` "
            f"({error})."
        ) from None


def words_of(name: str, value: Any) -> list[str]:
    """A YAML value as command-line words; none for null."""
    if isinstance(value, bool):
        return [flag_of(name if value else f"no-{name}")]
    if isinstance(value, list):
        return [word for one in value for word in words_of(name, one)]
    if isinstance(value, Mapping):
        return [f"{flag_of(name)}={json.dumps(value)}"]
    return [] if value is None else [f"{flag_of(name)}={value}"]
