"""Which family reads which architecture: built-in ones, imported when first needed, and those that
users register.

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
    """What a family's file, or an object given to `register_model`, defines."""

    ARCHITECTURES: tuple[str, ...]
    MODELS: str  # for people
    NAMES: Names

    def read_config(self, hf: Mapping[str, object]) -> ModelConfig: ...

    def write_config(self, config: ModelConfig) -> dict[str, object]: ...


@runtime_checkable
class OwnBody(Protocol):
    """What a family defines in addition if its body is not the shared decoder.

    The body declares parameters with `Linear`, `Embedding` and `parameter`, as the shared one does;
    sharding, loading, saving and updates follow from these declarations.
    """

    def build(self, config: ModelConfig, *, dtype: Any, rngs: nnx.Rngs | None) -> LanguageModel: ...

    def pieces(self, config: ModelConfig) -> dict[str, tuple[Piece, ...]]:
        """For each parameter's path the checkpoint tensors that fill it."""
        ...


@runtime_checkable
class OwnPools(Protocol):
    """What a family defines in addition if its models pool in a way of their own."""

    def read_pooling(self, hf: Mapping[str, object], config: ModelConfig) -> OwnPooling: ...


_REGISTERED: dict[str, Family] = {}
_ADD_A_MODEL = (
    "`jengine models check FOLDER` says whether model_impl='generic' can read it as a plain"
    " decoder. To add one, see examples/07_add_a_model.py (from your own code) or 'Add a model' in"
    " CONTRIBUTING.md."
)


def register_model(family: Family) -> None:
    """Read the family's architectures in this process as if they were built in.

    Registering an architecture again replaces it, so that a notebook's cell can be run twice.
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
    """All architectures that can be read now."""
    return (*FAMILIES, *_REGISTERED)


def is_built_in(hf: Mapping[str, object]) -> bool:
    """Whether a family of jengine's own reads this config.json."""
    return read_architecture(Fields(hf)) in FAMILIES


def models_of(architecture: str) -> str:
    """The models that a supported architecture is known by."""
    return _family(architecture).MODELS


def model_config(hf: Mapping[str, object]) -> ModelConfig:
    """The model that a parsed config.json describes, or a CheckpointError that says why not."""
    architecture = read_architecture(Fields(hf))
    if body_of(architecture) not in supported() and hf.get("auto_map") is not None:
        raise CheckpointError(
            f"config.json: {architecture!r} brings its own Python code ('auto_map'). Code from a"
            f" model folder is never run. Native architectures: {', '.join(supported())}."
            f" {_ADD_A_MODEL}"
        )
    # A native architecture with an auto_map is read by the native family; the code stays unused.
    # Copied only where it must be: `unread` watches which keys a family reads.
    is_plain = hf.get(KEY) is None
    plain = hf if is_plain else {key: value for key, value in hf.items() if key != KEY}
    config = _family(architecture).read_config(plain)
    quantization = read_quantization(Fields(hf))
    return config if quantization is None else replace(config, quantization=quantization)


def write_config(config: ModelConfig) -> dict[str, object]:
    """A config.json that reads back as `config`."""
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
    """Fields of `config` that `other` has otherwise; of the layers, the first that differs."""
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
    """A freshly initialised model; without `rngs`, its declarations only."""
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
    """Whether the family builds a body of its own instead of the shared decoder."""
    return isinstance(_family(config.architecture), OwnBody)


def checkpoint_map(config: ModelConfig) -> dict[str, tuple[Piece, ...]]:
    """For each parameter's path the checkpoint tensors that fill it. Those of quantized weights are
    the tensors that `QuantizedWeights` declares, whatever files hold."""
    pieces = plain_pieces(config)
    return pieces if config.quantization is None else quantized_pieces(config.quantization, pieces)


def plain_pieces(config: ModelConfig) -> dict[str, tuple[Piece, ...]]:
    """The same as if the model were not quantized."""
    family = _family(config.architecture)
    own = isinstance(family, OwnBody)
    body = family.pieces(config) if own else decoder_pieces(config, family.NAMES)
    return body if config.pooling is None else {**body, **pooler_pieces(config)}


def ignored_tensors(config: ModelConfig) -> tuple[IgnoredTensor, ...]:
    """Tensors that a checkpoint may hold without filling anything."""
    return ignored_in_decoder(config, _family(config.architecture).NAMES)


def full_names(config: ModelConfig, tensors: Mapping[str, T]) -> Mapping[str, T]:
    """A file's tensors by the names that `checkpoint_map` knows."""
    return with_prefix(tensors, _family(config.architecture).NAMES)


def tensor_names(config: ModelConfig) -> Names:
    """What the family calls its tensors."""
    return _family(config.architecture).NAMES


def unwritten_prefix(config: ModelConfig) -> str:
    """What tensors' names begin with that files of a bare model leave out, as vLLM reads them."""
    bare = config.architecture.endswith("Model") and pools_by_name(config.architecture)
    return tensor_names(config).prefix if bare and config.quantization is None else ""


def own_pooling(config: ModelConfig, hf: Mapping[str, object]) -> OwnPooling | None:
    """How the family's models pool, where that is not the last token's hidden state."""
    family = _family(config.architecture)
    return family.read_pooling(hf, config) if isinstance(family, OwnPools) else None


def body_of(architecture: str) -> str:
    """The architecture whose body this one has: a class with another head, or without any, is read
    as the one that writes."""
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
    """Raise for an architecture of which is known what is missing here."""
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
