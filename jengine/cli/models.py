"""`jengine models`: cached models, supported architectures, or how a model folder would be read.

In: a folder, of which config.json and weight headers are read. Out: how its tensors map and which
features it supports, or why not.
"""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jengine.cli.parser import Parser
from jengine.cli.terminal import Terminal
from jengine.errors import CheckpointError
from jengine.hub.cache import cache_folder, cached_models
from jengine.hub.failures import shown_bytes
from jengine.weights.resolve import resolve_model

if TYPE_CHECKING:
    from jengine.cli.main import OpenLLM

USAGE = "[cached | list | check FOLDER] [--json]"
EXAMPLES = """\
A decoder without a family here may still be read by what its tensors and config.json show: check
says how, or what is not understood, and which features work for a model. LLM(FOLDER,
model_impl="generic") loads it in that way; `jengine compare FOLDER --model-impl generic` compares
it with transformers.

examples:
  jengine models               what has been downloaded, and its size
  jengine models list          the families that are supported
  jengine models check ./model
"""


def add_flags(parser: Parser) -> None:
    parser.add_argument(
        "action", metavar="ACTION", choices=("cached", "list", "check"), nargs="?",
        default="cached", help="cached, list or check [cached]",
    )  # fmt: skip
    parser.add_argument("folder", metavar="FOLDER", nargs="?", help="check: a model folder")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace, terminal: Terminal, open_llm: OpenLLM) -> int:
    """List or check. Exit status 1 if a folder is not understood."""
    if arguments.action == "cached":
        show_cached(arguments.json, terminal)
        return 0
    registry = importlib.import_module("jengine.models.registry")  # imports jax
    if arguments.action == "list":
        table = {name: registry.models_of(name) for name in registry.supported()}
        write(table, arguments.json, terminal)
        return 0
    if arguments.folder is None:
        raise CheckpointError("jengine models check: give the FOLDER to check.")
    found = checked(resolve_model(arguments.folder))
    write(found, arguments.json, terminal)
    return 0


def show_cached(as_json: bool, terminal: Terminal) -> None:
    """List models of the download cache."""
    found = list(cached_models())
    if as_json:
        rows = [{**one._asdict(), "folder": str(one.folder)} for one in found]
        terminal.say(json.dumps(rows, indent=2))
        return
    for one in found:
        part = f", and {shown_bytes(one.unfinished)} of files that are not complete"
        terminal.say(f"{one.name}  {shown_bytes(one.nbytes)}{part if one.unfinished else ''}")
    terminal.say(f"{len(found)} models in {cache_folder(None)}")


def checked(folder: Path) -> dict[str, Any]:
    """Report how a folder's config.json and tensors map to the model. Raises CheckpointError if
    they cannot be mapped."""
    registry = importlib.import_module("jengine.models.registry")
    folders = importlib.import_module("jengine.weights.folder")
    importing = importlib.import_module("jengine.models.importing.imported")
    layouts = importlib.import_module("jengine.models.importing.decoder_layout")
    features = importlib.import_module("jengine.assembly.model_features").model_features
    unread = importlib.import_module("jengine.models.unread")
    hf = folders.read_config_file(folder)
    (architecture,) = hf["architectures"] if hf.get("architectures") else ("",)
    is_imported = isinstance(registry.registered(architecture), importing.ImportedFamily)
    if architecture in registry.supported() and not is_imported:
        # Compares names and shapes of all tensors; none is read.
        model, _ = importlib.import_module("jengine.weights.safetensors_io").open_model(folder)
        passed_over = [key for key in unread.unread_keys(hf) if not unread.is_harmless(key)]
        return {
            "family": registry.models_of(architecture),
            "layers": len(model.config.layers),
            **features(model.config),
            "keys of config.json that change no answer": passed_over,
        }
    registry.refuse_known(architecture)
    family = importing.ImportedFamily(hf, folders.shapes_of(folder))
    registry.register_model(family)  # its features are looked up below
    proven = importlib.import_module("jengine.models.importing.proven")
    how = "model_impl='generic'"
    if proven.is_proven(architecture):
        proven.expect_keys(hf, architecture)
        how = "the generic reader, compared with transformers,"
    return {
        "family": f"none for {architecture}; {how} reads it as follows",
        "layers": family.layout.layers,
        **layouts.shown(family.layout),
        **features(family.read_config(hf)),
        "assumed, since a folder cannot show it": list(importing.ASSUMED),
    }


def write(found: dict[str, Any], as_json: bool, terminal: Terminal) -> None:
    if as_json:
        terminal.say(json.dumps(found, indent=2))
        return
    for name, value in found.items():
        shown = "; ".join(map(str, value)) if isinstance(value, list) else value
        terminal.say(f"{name}: {shown if shown != '' else 'none'}")
