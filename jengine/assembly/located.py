"""Resolves Hugging Face repositories in settings to local folders.

Done once by the process that the user starts, so that cores and workers load the same commit. No
jax.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from jengine.assembly.progress import download_bars
from jengine.assembly.settings.args import EngineArgs
from jengine.assembly.settings.plain_settings import plain_settings
from jengine.assembly.settings.setting import CHECK
from jengine.errors import ConfigError, error_named
from jengine.hub.options import Check, HubOptions
from jengine.hub.wanted import ADAPTERS, MODEL, SETTINGS, ModelFiles
from jengine.speculative.config import speculative_config
from jengine.weights.resolve import in_hub, resolve_model

PREFLIGHT = "jengine.assembly.preflight"
REFUSED = 3  # preflight's exit status


def located(args: EngineArgs, check: Check) -> EngineArgs:
    """The settings with local folders of model, tokenizer and draft model. Weights are downloaded
    unless `check` refuses the model."""
    options = replace(args.hub, bar=download_bars(args.show_progress))
    changed: dict[str, Any] = {}
    if in_hub(args.model):
        wanted = ModelFiles(load_format=args.load_format)
        checked = replace(options, wanted=wanted, check=check)
        changed["model"] = folder_of(args.model, checked)
    other = args.tokenizer_revision not in (None, args.revision)
    if (tokenizer := tokenizer_name(args.model, args.tokenizer, other=other)) is not None:
        at = replace(options, revision=args.tokenizer_revision, wanted=SETTINGS)
        changed["tokenizer"] = folder_of(tokenizer, at)
    draft = args.speculative_config or {}
    if in_hub(draft.get("model")):
        at = replace(options, revision=draft.get("revision"), wanted=MODEL)
        changed["speculative_config"] = {
            **{key: value for key, value in draft.items() if key != "revision"},
            # The name may imply the method.
            "method": speculative_config(draft).method,
            "model": folder_of(draft["model"], at),
        }
    return replace(args, **changed) if changed else args


def tokenizer_name(model: Any, tokenizer: Any, *, other: bool) -> str | None:
    """The hub repository of the tokenizer, if it is not the model's at the same revision. `other`:
    the tokenizer's revision differs from the model's."""
    if in_hub(tokenizer):
        return str(tokenizer)
    return str(model) if other and tokenizer is None and in_hub(model) else None


def folder_of(name: Any, options: HubOptions) -> str:
    """Local folder or GGUF file of a name, downloaded if necessary."""
    return str(resolve_model(name, options).absolute())


def adapter_finder(hub: HubOptions) -> Callable[[str], str]:
    """Function that resolves an adapter's name to a local folder."""
    options = replace(hub, revision=None, wanted=ADAPTERS)

    def find(path: str) -> str:
        # Absolute paths from a server's clients are taken as they are, even if they look like
        # snapshots.
        is_name = in_hub(path) and not Path(path).is_absolute()
        return folder_of(path, options) if is_name else path

    return find


def checked_elsewhere(args: EngineArgs) -> Check:
    """A check in a separate process, for callers that must not import jax."""

    def check(folder: Path) -> None:
        plain = plain_settings(args, "a check", CHECK, model=str(folder))
        done = subprocess.run(  # noqa: S603 - our own program
            [sys.executable, "-m", PREFLIGHT], input=msgspec.msgpack.encode(plain),
            capture_output=True, check=False,
        )  # fmt: skip
        if done.returncode == REFUSED:
            raise error_named(*msgspec.msgpack.decode(done.stdout, type=tuple[str, str]))
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            raise ConfigError(f"it cannot be checked whether the model fits: {' '.join(said)}")

    return check
