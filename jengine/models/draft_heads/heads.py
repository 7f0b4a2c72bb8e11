"""Common parts of draft heads: their description, and their inputs from the target model.

In: config.json of the heads and tensor names of their file. Out: declarations, and the checkpoint
tensors that fill them. Must not know files, steps or sampling.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jax import Array

from jengine.config import CacheSpec, ModelConfig
from jengine.errors import CheckpointError
from jengine.models.families import llama, qwen3
from jengine.models.linear import Embedding, Factory, Linear
from jengine.models.tensors.checkpoint import IgnoredTensor, Piece

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float32, Int

Pieces = dict[str, tuple[Piece, ...]]
EMBED, HEAD = "embed_tokens.weight", "lm_head.weight"
# Families that EAGLE heads' layers may be of, by `model_type`.
FAMILIES: dict[str, ModuleType] = {"llama": llama, "qwen3": qwen3}
# config.json keys that describe the head, not its layers.
NOT_OF_LAYERS = ("architectures", "tie_word_embeddings", "model_type", "auto_map")


class DraftHeads(NamedTuple):
    """Draft heads for one target model, declared but not loaded."""

    model: nnx.Module  # declarations
    pieces: Pieces
    cache_specs: tuple[CacheSpec, ...] = ()  # of the heads' layers
    points: tuple[str, ...] = ()  # tap points of the target that they read
    ignored: tuple[IgnoredTensor, ...] = ()  # tensors of their file that no parameter needs


def read_layers(hf: Mapping[str, Any], config: ModelConfig) -> tuple[ModelConfig, ModuleType]:
    """Layers described by an EAGLE head's config.json, and their family. Raises CheckpointError."""
    kind = hf.get("model_type", "llama")
    if kind not in FAMILIES:
        raise CheckpointError(
            f"config.json: model_type={kind!r}: an EAGLE head with layers of another kind than "
            f"{', '.join(FAMILIES)} is not built."
        )
    family = FAMILIES[kind]
    plain = {key: value for key, value in hf.items() if key not in NOT_OF_LAYERS}
    described = {**plain, "architectures": list(family.ARCHITECTURES), "tie_word_embeddings": True}
    own = replace(family.read_config(described), dtype=config.dtype)
    if own.vocab_size != config.vocab_size:
        raise another_model("an EAGLE head", "vocab_size", own.vocab_size, config.vocab_size)
    return own, family


def another_model(what: str, name: str, given: int, expected: int) -> CheckpointError:
    """CheckpointError for heads trained for a model of other sizes."""
    return CheckpointError(
        f"config.json: {what} with {name}={given} for a model with {expected}: expected a head "
        "that was trained for this model."
    )


def own_embedding(config: ModelConfig, stored: Collection[str]) -> tuple[Embedding | None, Pieces]:
    """The embedding in the heads' file, or (None, {}) if they use the target's."""
    if EMBED not in stored:
        return None, {}
    shape = (config.vocab_size, config.hidden_size)
    table = Embedding(plain_factory(config), config.vocab_size, ("vocab", "embed"))
    return table, {"embed.weight": (Piece(EMBED, shape),)}


def matrix(config: ModelConfig, inputs: int, outputs: int) -> Linear:
    """A weight [inputs, outputs] of a head."""
    return Linear(plain_factory(config), (inputs,), (outputs,), ("embed", None))


def matrix_pieces(name: str, inputs: int, outputs: int) -> tuple[Piece, ...]:
    """Checkpoint tensor of `matrix`."""
    return (Piece(f"{name}.weight", (outputs, inputs), transpose=True),)


def plain_factory(config: ModelConfig) -> Factory:
    """Factory for modules of the heads, unquantized."""
    return Factory(config, jnp.dtype(config.dtype), None)


def embedded(
    own: Embedding | None, target: Any, tokens: Int[Array, " tokens"]
) -> Float32[Array, "tokens hidden"]:
    """Look tokens up in the heads' embedding, or the target's without adapters."""
    return (target.embed if own is None else own).base_rows(tokens)
