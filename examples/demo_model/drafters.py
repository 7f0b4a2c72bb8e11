"""What can draft tokens of the demo model: an EAGLE or EAGLE-3 head, Medusa heads, a small sibling.

In: the finished demo model, and rows of text. Out: declarations of a drafter, how far its drafts
are from the model's own distributions, and how often they are its most likely token.
Must not know: optimizers, files.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from examples.demo_model.batches import Batch
from examples.demo_model.trainer import checkpoint_config
from jengine.config import ModelConfig
from jengine.models.context import whole_sequences
from jengine.models.draft_heads.eagle import read_eagle
from jengine.models.draft_heads.eagle3_file import AUX_LAYERS, read_eagle3
from jengine.models.draft_heads.heads import HEAD
from jengine.models.draft_heads.medusa import read_medusa
from jengine.models.registry import checkpoint_map, model_config
from jengine.models.tensors.checkpoint import Piece
from jengine.weights.abstract import abstract_model

__all__ = ["KINDS", "Drafter", "Drafts", "drafter"]

DRAFTS = 3
# How much a drafted hidden state that is far from the model's counts, beside wrong drafts.
STATE_WEIGHT = 0.3
LAYER_KEYS = (
    "vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "intermediate_size", "max_position_embeddings", "rms_norm_eps", "rope_theta",
    "initializer_range", "torch_dtype",
)  # fmt: skip


class Drafts(NamedTuple):
    """For each place after a token (the next but one, and on): what is drafted and what the model
    says there, logits [tokens, vocab], and how much each token counts [tokens]."""

    drafted: list[Array]
    wanted: list[Array]
    weights: list[Array]
    # What is added to the loss.
    extra: Array | float = 0.0

    def loss(self) -> Array:
        """Mean cross-entropy with the model's own distributions."""
        losses = [
            jnp.sum(cross_entropy(drafted, wanted) * weights) / jnp.sum(weights)
            for drafted, wanted, weights in zip(*self[:3], strict=True)
        ]
        return sum(losses, jnp.zeros(())) / len(losses) + self.extra

    def agreement(self) -> list[Array]:
        """For each place the share of tokens whose most likely draft is the model's."""
        return [
            jnp.sum((drafted.argmax(-1) == wanted.argmax(-1)) * weights) / jnp.sum(weights)
            for drafted, wanted, weights in zip(*self[:3], strict=True)
        ]


class Drafter(NamedTuple):
    """One kind of drafter for one model."""

    hf: dict[str, Any]  # its config.json
    model: nnx.Module  # its declarations
    pieces: dict[str, tuple[Piece, ...]]  # its file's tensors
    drafts: Callable[[Any, Any, Batch], Drafts]  # of itself, for the model, in a batch


def drafter(kind: str, config: ModelConfig) -> Drafter:
    """A drafter of this kind for the demo model."""
    return KINDS[kind](replace(config, dtype="float32"))


def eagle(config: ModelConfig) -> Drafter:
    """A layer on the last hidden states, with the model's embedding and head."""
    hf = {**layer_config(config), "architectures": ["EagleLlamaForCausalLM"]}
    heads = read_eagle(hf, config)
    return Drafter(hf, heads.model, heads.pieces, eagle_drafts)


def eagle3(config: ModelConfig) -> Drafter:
    """A layer on hidden states after three layers, with the model's embedding."""
    layers = {AUX_LAYERS: [1, len(config.layers) // 2, len(config.layers) - 1]}
    hf = {**layer_config(config), **layers, "architectures": ["LlamaForCausalLMEagle3"]}
    heads = read_eagle3(hf, config, (HEAD,))
    return Drafter(hf, heads.model, heads.pieces, eagle3_drafts)


def medusa(config: ModelConfig) -> Drafter:
    """A head for each place, each with a matmul to the vocabulary of its own."""
    hf = {"architectures": ["MedusaModel"], "model_type": "medusa", "medusa_num_heads": DRAFTS,
          "medusa_num_layers": 1, "hidden_size": config.hidden_size,
          "vocab_size": config.vocab_size}  # fmt: skip
    heads = read_medusa(hf, config)
    return Drafter(hf, heads.model, heads.pieces, medusa_drafts)


def draft(config: ModelConfig) -> Drafter:
    """A sibling of the size "draft", a language model of its own."""
    hf = {**checkpoint_config("draft", config.vocab_size), "torch_dtype": "float32"}
    own = model_config(hf)
    return Drafter(hf, abstract_model(own), checkpoint_map(own), sibling_drafts)


KINDS = {"eagle": eagle, "eagle3": eagle3, "medusa": medusa, "draft": draft}


def layer_config(config: ModelConfig) -> dict[str, Any]:
    """config.json of one Llama layer of the demo model's sizes."""
    demo = checkpoint_config("demo", config.vocab_size)
    return {**{key: demo[key] for key in LAYER_KEYS}, "model_type": "llama", "num_hidden_layers": 1}


def eagle_drafts(head: Any, model: Any, batch: Batch) -> Drafts:
    """Drafts of a head whose hidden states are to be like the model's."""
    return decoded(head, model, batch, STATE_WEIGHT)


def eagle3_drafts(head: Any, model: Any, batch: Batch) -> Drafts:
    """Drafts of a head with hidden states of its own."""
    return decoded(head, model, batch, 0.0)


def decoded(head: Any, model: Any, batch: Batch, state_weight: float) -> Drafts:
    """Drafts one after the other, each from the hidden states of the one before, as in the engine;
    but there attention reads the model's hidden states at all places but the last."""
    tokens = jnp.asarray(batch.tokens[:, :-1])
    context = whole_sequences(tokens.shape, keep=getattr(head, "points", ()))
    hidden = model(tokens, context)
    states, following = head.states(hidden, context.kept)[:, :-1], tokens[:, 1:]
    wanted = flat(model.logits(hidden)[:, 1:])
    counted, drafted, extra = jnp.asarray(batch.weights[:, 1:]), [], jnp.zeros(())
    for _ in range(DRAFTS):
        own = head(following, states, whole_sequences(following.shape), model)
        drafted.append(head.logits(flat(own), jnp.zeros(wanted.shape[0], jnp.int32), model))
        far = jnp.mean(huber(own - hidden[:, 1:]), axis=-1)
        extra += state_weight * jnp.sum(far * counted) / jnp.sum(counted) / DRAFTS
        states = jnp.concatenate([states[:, :1], own[:, :-1]], axis=1)
    return Drafts(drafted, [wanted] * DRAFTS, [flat(counted)] * DRAFTS, extra)


def medusa_drafts(heads: Any, model: Any, batch: Batch) -> Drafts:
    """Drafts of all heads, each one place further on."""
    tokens = jnp.asarray(batch.tokens[:, :-1])
    hidden = model(tokens, whole_sequences(tokens.shape))
    logits, found = model.logits(hidden), Drafts([], [], [])
    for index, head in enumerate(heads.heads):
        live = jnp.zeros(hidden[:, : -1 - index].shape[:-1], jnp.int32)
        found.drafted.append(flat(head(hidden[:, : -1 - index], live)))
        found.wanted.append(flat(logits[:, 1 + index :]))
        found.weights.append(flat(jnp.asarray(batch.weights[:, 1 + index :])))
    return found


def sibling_drafts(sibling: Any, model: Any, batch: Batch) -> Drafts:
    """Its draft at each next token."""
    tokens = jnp.asarray(batch.tokens[:, :-1])
    drafted, wanted = (flat(one.score(tokens)) for one in (sibling, model))
    return Drafts([drafted], [wanted], [flat(jnp.asarray(batch.weights))])


def flat(x: Array) -> Array:
    """The first two axes as one."""
    return x.reshape(-1, *x.shape[2:])


def huber(x: Array) -> Array:
    """Half the square of small differences, the absolute value of large ones."""
    size = jnp.abs(x)
    return jnp.where(size < 1.0, 0.5 * size**2, size - 0.5)


def cross_entropy(drafted: Array, wanted: Array) -> Array:
    """Between the distributions of logits [tokens, vocab]."""
    wanted = jax.nn.softmax(jax.lax.stop_gradient(wanted))
    return -jnp.sum(wanted * jax.nn.log_softmax(drafted), axis=-1)
