"""Selects the files of a repository to download: never pickles, code, or the same weights twice.

In: the paths of all files, and a folder with the small ones. Out: paths, or an error that says what
the repository holds instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Protocol

from jengine.errors import CheckpointError
from jengine.hub.names import GGUF

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
CONFIG, ADAPTER = "config.json", "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
# Settings, tokenizers, templates, preprocessors, and the modules of sentence-transformers.
SMALL = (
    "*.json", "*.jinja", "vocab.txt", "merges.txt", "tokenizer.model", "*.tiktoken",
    "additional_chat_templates/*.jinja", "[0-9]_*/config.json",
)  # fmt: skip
DENSE = "[0-9]_*/model.safetensors"
ORBAX_MARKS = ("_CHECKPOINT_METADATA", "_METADATA")
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
SPLIT = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


class WantedFiles(Protocol):
    """Selects files of a repository for one purpose."""

    def small(self, paths: Sequence[str]) -> list[str]:
        """Small files (a few megabytes) that are needed to choose the large ones."""
        ...

    def large(self, paths: Sequence[str], folder: Path) -> list[str]:
        """Large files to download. `folder` has the small ones."""
        ...

    def found(self, folder: Path, large: Sequence[str]) -> Path:
        """The path to open: the snapshot or a file in it."""
        ...


@dataclass(frozen=True)
class SmallFiles:
    """Config, tokenizer and processor files, without weights."""

    patterns: tuple[str, ...] = SMALL

    def small(self, paths: Sequence[str]) -> list[str]:
        """Files at the top of the repository that match `patterns`."""
        found = [path for path in paths if any(_matches(path, one) for one in self.patterns)]
        return [path for path in found if not path.endswith(".index.json") or path == INDEX]

    def large(self, paths: Sequence[str], folder: Path) -> list[str]:
        return []

    def found(self, folder: Path, large: Sequence[str]) -> Path:
        return folder


@dataclass(frozen=True)
class ModelFiles(SmallFiles):
    """A model: the small files, and weights in the requested format or the only one there is."""

    load_format: str = "auto"
    quant: str | None = None  # of GGUF files

    def large(self, paths: Sequence[str], folder: Path) -> list[str]:
        """Files with weights."""
        if self.load_format in ("dummy", "peer"):
            return []
        dense = [path for path in paths if _matches(path, DENSE)]
        orbax = orbax_files(paths)
        if self.quant is not None:
            return gguf_files(paths, self.quant)
        if self.load_format == "orbax":
            return [*orbax, *dense] or _no_weights(paths)
        if SINGLE in paths:
            return [SINGLE, *dense]
        if INDEX in paths:
            return [*shards(folder / INDEX, paths), *dense]
        if orbax:
            return orbax
        return gguf_files(paths, None) or _no_weights(paths)

    def found(self, folder: Path, large: Sequence[str]) -> Path:
        """The (first) GGUF file, else the folder."""
        gguf = next((path for path in large if path.endswith(GGUF)), None)
        return folder if gguf is None else folder / gguf


@dataclass(frozen=True)
class AdapterFiles(SmallFiles):
    """A LoRA adapter in PEFT's format."""

    def small(self, paths: Sequence[str]) -> list[str]:
        """Its config; raises CheckpointError if there is none."""
        if ADAPTER not in paths:
            raise CheckpointError(
                f"expected an adapter with {ADAPTER}, found {_listed(paths)}. A whole model is "
                "given as the model."
            )
        return [ADAPTER]

    def large(self, paths: Sequence[str], folder: Path) -> list[str]:
        """Its weights."""
        return [ADAPTER_WEIGHTS] if ADAPTER_WEIGHTS in paths else _no_weights(paths)


MODEL, SETTINGS, ADAPTERS = ModelFiles(), SmallFiles(), AdapterFiles()
CONFIG_FILE = SmallFiles((CONFIG,))


def of_quant(wanted: WantedFiles, quant: str | None) -> WantedFiles:
    """The selection restricted to GGUF files of this quantization."""
    return replace(wanted, quant=quant) if isinstance(wanted, ModelFiles) else wanted


def without(paths: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """The paths that match no pattern; `*` also matches `/`."""
    return [path for path in paths if not any(fnmatchcase(path, one) for one in patterns)]


def shards(index: Path, paths: Sequence[str]) -> list[str]:
    """The safetensors files that an index names."""
    try:
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{INDEX} is damaged: {error!r}.") from error
    missing = [name for name in names if name not in paths]
    if missing or not names:
        raise CheckpointError(f"{INDEX} names {_listed(missing) or 'no file'}, which is not there.")
    return names


def orbax_files(paths: Sequence[str]) -> list[str]:
    """All files of the Orbax checkpoints."""
    marks = [PurePosixPath(path) for path in paths if PurePosixPath(path).name in ORBAX_MARKS]
    tops = {str(mark.parent) + "/" for mark in marks if str(mark.parent) != "."}
    return [path for path in paths if any(path.startswith(top) for top in tops)]


def gguf_files(paths: Sequence[str], quant: str | None) -> list[str]:
    """The GGUF file of this quantization with its further parts; `quant` None: the only file."""
    models = [path for path in paths if path.endswith(GGUF) and "mmproj" not in path.lower()]
    firsts = [path for path in models if (part := SPLIT.search(path)) is None or part[1] == "00001"]
    if quant is not None:
        named = re.compile(rf"(^|[-._/]){re.escape(quant)}([-.]|$)", re.IGNORECASE)
        found = [path for path in firsts if named.search(PurePosixPath(path).name)]
    else:
        found = firsts
    if len(found) == 1:
        stem = SPLIT.sub("-", found[0])
        parts = [path for path in models if SPLIT.search(path) and SPLIT.sub("-", path) == stem]
        return sorted(parts) if parts else found
    if quant is None and not firsts:
        return []
    what = "no GGUF file" if not found else f"{len(found)} GGUF files"
    raise CheckpointError(
        f"{what} {f'for {quant!r}' if quant else 'to choose from'}: found "
        f"{_listed(firsts) or 'none at all'}. Name one by its quantization, as in org/name:Q4_K_M."
    )


def _no_weights(paths: Sequence[str]) -> list[str]:
    """Raise CheckpointError: the repository has no supported weights."""
    pickles = [path for path in paths if path.endswith(PICKLES)]
    if pickles:
        raise CheckpointError(
            f"the weights are pickles only ({_listed(pickles)}), which can run code when they are "
            "opened, and are never read. Ask for safetensors there, look for a revision with them "
            "(refs/pr/...), or convert them with transformers' save_pretrained() where you trust "
            "them."
        )
    raise CheckpointError(
        f"expected {SINGLE}, or {INDEX} and its shards, an Orbax checkpoint or .gguf files; found "
        f"{_listed(paths) or 'no files'}."
    )


def _matches(path: str, pattern: str) -> bool:
    """Whether a path matches; `*` does not match `/`."""
    return path.count("/") == pattern.count("/") and fnmatchcase(path, pattern)


def _listed(paths: Sequence[str], most: int = 8) -> str:
    more = f" and {len(paths) - most} more" if len(paths) > most else ""
    return ", ".join(paths[:most]) + more
