"""Opens a model folder or a GGUF file: config.json, and the tensors of its files.

In: a folder in Hugging Face format. Out: the ModelConfig and where each tensor is stored. Reads
local files only; nothing is executed or downloaded.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from jengine.config import ModelConfig
from jengine.errors import CheckpointError
from jengine.models import registry
from jengine.models.importing.decoder_layout import shown
from jengine.models.importing.imported import ASSUMED, ImportedFamily
from jengine.models.importing.proven import expect_keys, is_proven
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import read_architecture
from jengine.weights.generation_config import read_json
from jengine.weights.gguf.checkpoint import gguf_tensors, read_gguf_config
from jengine.weights.resolve import GGUF_ADVICE, is_gguf
from jengine.weights.safetensors_file import StoredTensor, read_header
from jengine.weights.stored_parameter import TypedTensor

logger = logging.getLogger(__name__)

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
# Formats that are refused: pickles, which can run code, and others.
OTHER_FORMATS = (".bin", ".pt", ".pth", ".ckpt", ".gguf", ".msgpack", ".h5")


def read_model_config(folder: Path) -> ModelConfig:
    """ModelConfig from config.json or a GGUF header. Raises CheckpointError."""
    if is_gguf(folder):
        return read_gguf_config(folder)
    return registry.model_config(read_config_file(folder))


def read_config_file(
    folder: Path, overrides: Mapping[str, object] | None = None
) -> dict[str, object]:
    """The folder's config.json, with overrides merged in. Raises CheckpointError."""
    file = folder / "config.json"
    if not file.is_file() and any(folder.glob("*.gguf")):
        raise CheckpointError(f"{folder}: holds GGUF files and no config.json. {GGUF_ADVICE}")
    return merged(read_json(file), overrides or {})


def merged(values: Mapping[str, object], other: Mapping[str, object]) -> dict[str, object]:
    """Merge nested mappings; `other` takes precedence."""
    found = dict(values)
    for key, value in other.items():
        inner = found.get(key)
        both = isinstance(inner, Mapping) and isinstance(value, Mapping)
        found[key] = merged(inner, value) if both else value  # pyrefly: ignore[bad-argument-type]
    return found


def dense_tensors(folder: Path, config: ModelConfig) -> dict[str, TypedTensor]:
    """Weights of the Dense modules that sentence-transformers keeps in subfolders."""
    layers = () if config.pooling is None else config.pooling.head
    parts = {layer.name.rpartition("/")[0] for layer in layers} - {""}
    return {
        f"{part}/{name}": tensor
        for part in sorted(parts)
        for name, tensor in read_header(folder / part / SINGLE_FILE).items()
    }


def shapes_of(folder: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of all tensors, from headers."""
    return {name: tuple(tensor.shape) for name, tensor in open_checkpoint(folder).items()}


def is_imported(hf: Mapping[str, object]) -> bool:
    """Whether the generic reader (`models/importing`) reads this config.json by default: no
    built-in family does, and the architecture is proven against transformers."""
    architecture = read_architecture(Fields(hf))
    own = registry.registered(architecture)
    return is_proven(architecture) and (own is None or isinstance(own, ImportedFamily))


def register_imported(
    folder: Path, overrides: Mapping[str, object] | None = None, *, is_asked: bool = True
) -> None:
    """Register a family derived from this folder's tensors and config.json (`models/importing`), if
    no built-in family reads it. Unless `is_asked`, only for architectures proven against
    transformers."""
    if not is_asked and not (folder / "config.json").is_file():
        return
    hf = read_config_file(folder, overrides)
    if registry.is_built_in(hf) or not (is_asked or is_imported(hf)):
        return
    family = ImportedFamily(hf, shapes_of(folder))
    registry.register_model(family)
    architecture = family.ARCHITECTURES[0]
    if is_proven(architecture):
        expect_keys(hf, architecture)
        logger.info("%s is read by the generic reader, as transformers reads it.", architecture)
        return
    logger.warning(
        "%s has no family here. It is read as its tensors show: %s. Assumed, since a folder cannot "
        "show it: %s. Compare it with transformers: jengine compare %s --model-impl generic",
        architecture, "; ".join(f"{k}: {v}" for k, v in shown(family.layout).items()),
        "; ".join(ASSUMED), folder,
    )  # fmt: skip


def open_checkpoint(folder: Path) -> Mapping[str, TypedTensor]:
    """All tensors of the folder's safetensors or GGUF files by name, unread."""
    if is_gguf(folder):
        return gguf_tensors(folder)
    if (folder / SINGLE_FILE).is_file():
        return read_header(folder / SINGLE_FILE)
    if (folder / INDEX_FILE).is_file():
        return _read_shards(folder, read_json(folder / INDEX_FILE))
    raise CheckpointError(f"{folder}: {_why_no_weights(folder)}")


def _why_no_weights(folder: Path) -> str:
    wanted = f"expected {SINGLE_FILE}, or {INDEX_FILE} and its shards"
    if not folder.is_dir():
        return f"is not a folder; {wanted}."
    names = sorted(file.name for file in folder.iterdir())
    shards = [name for name in names if name.endswith(".safetensors")]
    if shards:
        return f"{wanted}, found only {', '.join(shards[:10])}."
    others = [name for name in names if name.endswith(OTHER_FORMATS)]
    if others and all(name.endswith(".gguf") for name in others):
        return f"{wanted}, found only {', '.join(others[:10])}. {GGUF_ADVICE}"
    if others:
        return (
            f"{wanted}, found only {', '.join(others[:10])}. Pickled weights can run code when they"
            " are opened and other formats are not read here. Convert them to safetensors: load the"
            " model with transformers where you trust it and call save_pretrained()."
        )
    return f"{wanted}, found no weights."


def _read_shards(folder: Path, index: Mapping[str, object]) -> dict[str, StoredTensor]:
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{folder / INDEX_FILE}: 'weight_map' is missing or not an object.")
    shards = {_shard_name(folder, name, shard) for name, shard in weight_map.items()}
    tensors: dict[str, StoredTensor] = {}
    for shard in sorted(shards):
        for name, tensor in _read_shard(folder, shard).items():
            if name in tensors:
                raise CheckpointError(f"{folder}: {name!r} is in {tensors[name].file} and {shard}.")
            if weight_map.get(name) != shard:
                raise CheckpointError(
                    f"{folder / INDEX_FILE}: does not say that {name!r} is in {shard}."
                )
            tensors[name] = tensor
    absent = [name for name in weight_map if name not in tensors]
    if absent:
        raise CheckpointError(
            f"{folder / weight_map[absent[0]]}: holds no {absent[0]!r}, as the index says."
        )
    return tensors


def _shard_name(folder: Path, name: str, shard: object) -> str:
    """Validate a shard's file name, so that it cannot escape the folder; the file may be a symbolic
    link, as in download caches."""
    if (
        not isinstance(shard, str)
        or Path(shard).name != shard
        or "\\" in shard
        or "\0" in shard
        or not shard.endswith(".safetensors")
    ):
        raise CheckpointError(
            f"{folder / INDEX_FILE}: {name!r} is said to be in {str(shard)[:120]!r}, expected the"
            " name of a .safetensors file in the same folder."
        )
    return shard


def _read_shard(folder: Path, shard: str) -> dict[str, StoredTensor]:
    if not (folder / shard).is_file():
        raise CheckpointError(f"{folder}: shard {shard!r} is missing; the index names it.")
    return read_header(folder / shard)
