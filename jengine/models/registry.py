"""Registry of model families by architecture: built-in ones, imported lazily, and users'.

In: a parsed config.json or a ModelConfig. Out: ModelConfig, a model, its checkpoint tensors. Must
not know files.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

import jax.numpy as jnp
from flax import nnx

from jengine.config import ModelConfig
from jengine.errors import CheckpointError, ConfigError, nearest_name
from jengine.models.architectures import BODIES, FAMILIES, POOLED_ENDINGS, REFUSED
from jengine.models.decoder import Decoder
from jengine.models.language_model import LanguageModel
from jengine.models.pooler import Pooler
from jengine.models.quantized import with_schemes
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import read_architecture
from jengine.models.reading.pooling import OwnPooling, pools_by_name
from jengine.models.reading.quantization_config import KEY, read_quantization
from jengine.models.reading.quantization_write import write_quantization
from jengine.models.tensors.checkpoint import (
    IgnoredTensor,
    Names,
    Piece,
    ignored_in_decoder,
    with_prefix,
)
from jengine.models.tensors.decoder_pieces import decoder_pieces
from jengine.models.tensors.pooler_pieces import pooler_pieces
from jengine.models.tensors.quantized_pieces import quantized_pieces

T = TypeVar("T")


class Family(Protocol):
    """A model family: a module of `families`, or an object given to `register_model`.

    `read_config` maps a parsed config.json to a ModelConfig and raises CheckpointError for
    unsupported values; `write_config` is its inverse. `MODELS` is the display name of its models,
    `NAMES` are their checkpoint tensors.
    """

    ARCHITECTURES: tuple[str, ...]
    MODELS: str  # display name
    NAMES: Names

    def read_config(self, hf: Mapping[str, object]) -> ModelConfig: ...

    def write_config(self, config: ModelConfig) -> dict[str, object]: ...


@runtime_checkable
class OwnBody(Protocol):
    """A family whose body is not the shared decoder.

    `build` makes it, declaring parameters with `Linear`, `Embedding` and `parameter` as the shared
    one does; sharding, loading, saving and updates follow from these declarations.
    """

    def build(self, config: ModelConfig, *, dtype: Any, rngs: nnx.Rngs | None) -> LanguageModel: ...

    def pieces(self, config: ModelConfig) -> dict[str, tuple[Piece, ...]]:
        """Checkpoint tensors that fill each parameter, by parameter path."""
        ...


@runtime_checkable
class OwnPools(Protocol):
    """A family with its own pooling."""

    def read_pooling(self, hf: Mapping[str, object], config: ModelConfig) -> OwnPooling: ...


_REGISTERED: dict[str, Family] = {}
_ADD_A_MODEL = (
    "`jengine models check FOLDER` says whether model_impl='generic' can read it as a plain"
    " decoder. To add one, see examples/07_add_a_model.py (from your own code) or 'Add a model' in"
    " CONTRIBUTING.md."
)


def register_model(family: Family) -> None:
    """Register a family in this process.

    Registering an architecture again replaces it, so that a notebook cell can be rerun. Raises
    ConfigError for an incomplete family.
    """
    if isinstance(family, type):
        raise ConfigError(f"give an instance: register_model({family.__name__}()).")
    wanted = ("ARCHITECTURES", "MODELS", "NAMES", "read_config", "write_config")
    missing = [name for name in wanted if not hasattr(family, name)]
    if missing:
        raise ConfigError(f"a family needs {', '.join(missing)}. {_ADD_A_MODEL}")
    names = family.ARCHITECTURES
    if not isinstance(names, tuple) or not names or not all(isinstance(n, str) for n in names):
        raise ConfigError(
            f"ARCHITECTURES={names!r}: expected a tuple of class names, as config.json has them"
            " under 'architectures'."
        )
    built_in = [name for name in names if name in FAMILIES]
    if built_in:
        raise ConfigError(f"{', '.join(built_in)}: built in, and read by jengine's own family.")
    _REGISTERED.update(dict.fromkeys(names, family))


def supported() -> tuple[str, ...]:
    """All architectures that can be read, users' included."""
    return (*FAMILIES, *_REGISTERED)


def registered(architecture: str) -> Family | None:
    """The family that this process registered for an architecture."""
    return _REGISTERED.get(architecture)


def is_built_in(hf: Mapping[str, object]) -> bool:
    """Whether a built-in family reads this config.json."""
    return read_architecture(Fields(hf)) in FAMILIES


def models_of(architecture: str) -> str:
    """Display names of an architecture's models."""
    return _family(architecture).MODELS


def model_config(hf: Mapping[str, object]) -> ModelConfig:
    """Parse a config.json. Raises CheckpointError."""
    architecture = read_architecture(Fields(hf))
    if body_of(architecture) not in supported() and hf.get("auto_map") is not None:
        raise CheckpointError(
            f"config.json: {architecture!r} brings its own Python code ('auto_map'). Code from a"
            f" model folder is never run. Native architectures: {', '.join(supported())}."
            f" {_ADD_A_MODEL}"
        )
    # An `auto_map` (remote code) of a supported architecture is ignored. `hf` is copied only if it
    # must be: `unread` tracks which keys are read from it.
    is_plain = hf.get(KEY) is None
    plain = hf if is_plain else {key: value for key, value in hf.items() if key != KEY}
    config = _family(architecture).read_config(plain)
    quantization = read_quantization(Fields(hf))
    return config if quantization is None else replace(config, quantization=quantization)


def write_config(config: ModelConfig) -> dict[str, object]:
    """A config.json that reads back as `config`. Raises CheckpointError if none can express it."""
    written = _family(config.architecture).write_config(config)
    if config.quantization is not None:
        written = {**written, KEY: write_quantization(config.quantization)}
    again = model_config(written)
    differing = [f"{name}={value!r}" for name, value in _differences(config, again)]
    if differing:
        raise CheckpointError(
            f"A config.json of {config.architecture} cannot express {', '.join(differing)}."
        )
    return written


def _differences(config: ModelConfig, other: ModelConfig) -> Iterator[tuple[str, object]]:
    """Fields in which two configs differ; of the layers only the first difference."""
    for name, value in vars(config).items():
        if name != "layers" and value != vars(other)[name]:
            yield name, value
    for index, (layer, theirs) in enumerate(zip(config.layers, other.layers, strict=False)):
        if layer != theirs:
            yield f"layers[{index}]", layer
            return
    if len(config.layers) != len(other.layers):
        yield "len(layers)", len(config.layers)


def build(config: ModelConfig, *, dtype: Any = jnp.float32, rngs: nnx.Rngs | None) -> LanguageModel:
    """Build a freshly initialised model; without `rngs`, abstract declarations only."""
    if config.quantization is not None and rngs is not None:
        raise ConfigError(
            f"a quantized {config.architecture} cannot be initialised: it is only declared. Give "
            "rngs=None, or a config without quantization."
        )
    family = _family(config.architecture)
    own = isinstance(family, OwnBody)
    model = (family.build if own else Decoder)(config, dtype=dtype, rngs=rngs)
    if config.pooling is not None:
        model.pooler = Pooler(config, config.pooling, rngs)
    if config.quantization is not None:
        name = jnp.dtype(dtype).name
        with_schemes(model, config.quantization, plain_pieces(config), name)
    return model


def has_own_body(config: ModelConfig) -> bool:
    """Whether the family builds its own body instead of the shared decoder."""
    return isinstance(_family(config.architecture), OwnBody)


def checkpoint_map(config: ModelConfig) -> dict[str, tuple[Piece, ...]]:
    """Checkpoint tensors that fill each parameter, by parameter path.

    For quantized weights these are the tensors declared by `QuantizedWeights`, whatever the files'
    layout.
    """
    pieces = plain_pieces(config)
    return pieces if config.quantization is None else quantized_pieces(config.quantization, pieces)


def plain_pieces(config: ModelConfig) -> dict[str, tuple[Piece, ...]]:
    """`checkpoint_map` of the unquantized model."""
    family = _family(config.architecture)
    own = isinstance(family, OwnBody)
    body = family.pieces(config) if own else decoder_pieces(config, family.NAMES)
    return body if config.pooling is None else {**body, **pooler_pieces(config)}


def ignored_tensors(config: ModelConfig) -> tuple[IgnoredTensor, ...]:
    """Tensors that a checkpoint may hold although no parameter needs them."""
    return ignored_in_decoder(config, _family(config.architecture).NAMES)


def full_names(config: ModelConfig, tensors: Mapping[str, T]) -> Mapping[str, T]:
    """Rename a file's tensors to the names used by `checkpoint_map`."""
    return with_prefix(tensors, _family(config.architecture).NAMES)


def tensor_names(config: ModelConfig) -> Names:
    return _family(config.architecture).NAMES


def unwritten_prefix(config: ModelConfig) -> str:
    """Prefix that bare models' files leave out of tensor names, as vLLM writes them."""
    bare = config.architecture.endswith("Model") and pools_by_name(config.architecture)
    return tensor_names(config).prefix if bare and config.quantization is None else ""


def own_pooling(config: ModelConfig, hf: Mapping[str, object]) -> OwnPooling | None:
    """The family's own pooling; None for last-token pooling."""
    family = _family(config.architecture)
    return family.read_pooling(hf, config) if isinstance(family, OwnPools) else None


def body_of(architecture: str) -> str:
    """The architecture with this one's body: classes with another head, or none, are read as their
    causal language model."""
    known = supported()
    if architecture in known:
        return architecture
    if architecture in BODIES:
        return BODIES[architecture]
    for ending in POOLED_ENDINGS:
        stem = architecture.removesuffix(ending)
        for writing in (f"{stem}ForCausalLM", f"{stem}LMHeadModel"):
            if stem != architecture and writing in known:
                return writing
    return architecture


def refuse_known(architecture: str) -> None:
    """Raise CheckpointError with the reason for a known, unsupported architecture."""
    if architecture in REFUSED:
        raise CheckpointError(
            f"config.json: architecture {architecture!r} is not supported: {REFUSED[architecture]}."
        )


def _family(architecture: str) -> Family:
    architecture = body_of(architecture)
    if architecture in _REGISTERED:
        return _REGISTERED[architecture]
    refuse_known(architecture)
    if architecture not in FAMILIES:
        raise CheckpointError(
            f"config.json: architecture {architecture!r} is not supported."
            f"{nearest_name(architecture, supported())} Supported: {', '.join(supported())}."
            f" {_ADD_A_MODEL}"
        )
    return cast(Family, importlib.import_module(FAMILIES[architecture]))
