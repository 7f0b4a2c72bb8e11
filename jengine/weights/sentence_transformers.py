"""Reads sentence-transformers' files: modules, pooling and prompts. No jax.

In: a folder with modules.json. Out: plain data. Classes named in the files are never imported.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jengine.errors import CheckpointError
from jengine.models.reading.fields import Fields
from jengine.weights.generation_config import read_json
from jengine.weights.gguf.files import open_gguf
from jengine.weights.gguf.pooling import pooling_of
from jengine.weights.resolve import is_gguf

# Pooling modes in config files, of either style -> ours.
MODES = {
    "cls": "CLS",
    "pooling_mode_cls_token": "CLS",
    "mean": "MEAN",
    "pooling_mode_mean_tokens": "MEAN",
    "lasttoken": "LAST",
    "pooling_mode_lasttoken": "LAST",
}
WIDEST = 2**20


@dataclass(frozen=True)
class DenseModule:
    """A Dense module after pooling, in its own folder."""

    folder: str
    outputs: int
    bias: bool
    activation: str  # class name in torch.nn


@dataclass(frozen=True)
class SentenceModel:
    """Pooling settings of a sentence-transformers model."""

    pooling: str | None  # CLS, MEAN or LAST; None: tokens are not pooled
    normalizes: bool | None  # None: unknown
    dense: tuple[DenseModule, ...]
    prompts: tuple[tuple[str, str], ...] = ()
    max_length: int | None = None
    lower_case: bool = False


def read_sentence_model(folder: Path) -> SentenceModel | None:
    """Parse the folder's modules, or a GGUF file's pooling; None without. Raises
    CheckpointError."""
    if is_gguf(folder):
        kind = pooling_of(open_gguf(folder))
        return None if kind is None else SentenceModel(kind, None, ())
    file = folder / "modules.json"
    if not file.is_file():
        return None
    modules = [(_kind(file, one), str(one.get("path") or "")) for one in _listed(file)]
    found: dict[str, list[str]] = {}
    for kind, path in modules:
        found.setdefault(kind, []).append(checked_path(file, path))
    pooling = _pooling(folder / found["Pooling"][0]) if found.get("Pooling") else None
    dense = tuple(_dense(folder, path) for path in found.get("Dense", []))
    config = _optional(folder / "config_sentence_transformers.json")
    body = _optional(folder / "sentence_bert_config.json")
    prompts = config.part("prompts")
    return SentenceModel(
        pooling,
        bool(found.get("Normalize")),
        dense,
        tuple((name, str(text)) for name, text in prompts.values.items()) if prompts else (),
        body.optional_integer("max_seq_length", None),
        body.flag("do_lower_case", False),
    )


def _listed(file: Path) -> list[dict[str, Any]]:
    try:
        parsed = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: cannot be read as JSON: {error}.") from error
    if not isinstance(parsed, list) or not all(isinstance(one, dict) for one in parsed):
        raise CheckpointError(f"{file}: expected a JSON list of objects.")
    return parsed


def _kind(file: Path, module: dict[str, Any]) -> str:
    """Class name of a module."""
    name = module.get("type")
    if not isinstance(name, str):
        raise CheckpointError(f"{file}: a module without a 'type'.")
    return name.rpartition(".")[2]


def checked_path(file: Path, path: str) -> str:
    """A path inside the model's folder. Raises CheckpointError."""
    if Path(path).is_absolute() or ".." in Path(path).parts or "\0" in path:
        raise CheckpointError(f"{file}: the path {path[:100]!r} leads out of the folder.")
    return path


def _optional(file: Path) -> Fields:
    return Fields(read_json(file) if file.is_file() else {}, str(file))


def _pooling(folder: Path) -> str:
    file = folder / "config.json"
    fields = Fields(read_json(file), str(file))
    given = fields.values.get("pooling_mode")
    names = [given] if isinstance(given, str) else []
    names += [key for key in fields.values if key.startswith("pooling_mode_")]
    chosen = [name for name in names if name == given or fields.values[name] is True]
    if len(chosen) != 1 or chosen[0] not in MODES:
        raise CheckpointError(
            f"{file}: pooling {', '.join(map(str, chosen)) or 'nothing'}; expected one of "
            f"{', '.join(MODES)}."
        )
    return MODES[str(chosen[0])]


def _dense(folder: Path, path: str) -> DenseModule:
    file = folder / path / "config.json"
    fields = Fields(read_json(file), str(file))
    name = fields.values.get("activation_function", "torch.nn.modules.activation.Tanh")
    outputs = fields.integer("out_features", None, maximum=WIDEST)
    activation = str(name).rpartition(".")[2]
    return DenseModule(path, outputs, fields.flag("bias", True), activation)
