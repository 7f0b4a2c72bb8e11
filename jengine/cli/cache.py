"""`jengine cache`: bundles of compiled programs, to start on other machines of the same kind.

In: arguments. Out: a file, or a filled cache. The work is in bundling.py, which imports jax.
"""

from __future__ import annotations

import argparse
import importlib
from typing import TYPE_CHECKING

from jengine.cli.flags import add_engine_flags
from jengine.cli.parser import Parser
from jengine.cli.terminal import Terminal

if TYPE_CHECKING:
    from jengine.cli.main import OpenLLM

USAGE = "save FILE MODEL [flags] | load FILE | show [FILE]"
EXAMPLES = """\
A bundle holds the programs of LLM(MODEL, flags): an engine with the same settings starts from them.
On a CPU it holds the compiled kernels too, so that the other machines need no C++ compiler.
It is executed: load only bundles that you made or whose maker you trust.

examples:
  jengine cache save warm.zip ./model --max-model-len 4k     on a machine like the others
  jengine cache load warm.zip                                on each of them
  jengine cache show warm.zip                                what is in it
  jengine cache show                                         the cache of this machine
"""
KINDS = ("save", "load", "show")


def add_flags(parser: Parser) -> None:
    parser.add_argument("kind", metavar="KIND", choices=KINDS, help="save, load or show")
    parser.add_argument("file", metavar="FILE", nargs="?", help="the bundle")
    parser.add_argument("model", metavar="MODEL", nargs="?", help="a folder, org/name, or demo")
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="save: replace the file; load: replace entries that were compiled here",
    )
    parser.add_argument("--cache-dir", metavar="DIR", help="the cache [the one that engines use]")
    add_engine_flags(parser)


def run(arguments: argparse.Namespace, terminal: Terminal, open_llm: OpenLLM) -> int:
    bundling = importlib.import_module(
        "jengine.cli.bundling"
    )  # imports jax, which help does not need
    if arguments.kind == "save":
        bundling.save(arguments, terminal, open_llm)
    elif arguments.kind == "load":
        bundling.load(arguments, terminal)
    else:
        bundling.show(arguments, terminal)
    return 0
