"""One training run: a plan, the model's parameters and optimizer, and how a step changes them.

In: a Plan and a tokenizer. Out: losses, and a state that orbax saves and restores.
Must not know: how the model computes (`jengine.models`), what the text says (`corpus`).
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from orbax.checkpoint import v1 as ocp
from tokenizers import Tokenizer

from examples.demo_model import corpus
from examples.demo_model import tokenizer as demo_tokenizer
from examples.demo_model.batches import Batch, batch_at
from jengine.models.decoder import Decoder
from jengine.models.registry import model_config
from jengine.weights.safetensors_io import load_model

__all__ = ["SIZES", "Plan", "Trainer", "checkpoint_config", "schedule"]

# hidden size, layers, heads, KV heads, head dimension, inner size of the MLP
SIZES = {
    "demo": (192, 5, 6, 2, 32, 448),
    "small": (128, 3, 4, 2, 32, 384),
    "tiny": (32, 2, 2, 1, 16, 64),
    "draft": (96, 2, 3, 1, 32, 256),  # drafts tokens for the demo model
}
HELD_OUT_BATCHES = 8


@dataclass(frozen=True)
class Plan:
    """How long and on what to train; the same plan always gives the same model."""

    size: str = "demo"
    steps: int = 6600
    tokens_per_step: int = 2048
    learning_rate: float = 3e-3
    warmup: int = 100
    # The last part of the steps, in which the learning rate falls to zero.
    decay_share: float = 0.3
    seed: int = 0
    # (from which share of the steps, length of a row): short rows are cheap, long ones teach
    # whole stories and conversations.
    lengths: tuple[tuple[float, int], ...] = ((0.0, 128), (0.65, 256), (0.95, 512))
    # More steps at a lower learning rate, on `corpus.REFRESHER`.
    refresher: int = 0
    refresher_rate: float = 1.2e-3
    refresher_lengths: tuple[tuple[float, int], ...] = ((0.0, 256), (0.85, 512))

    @property
    def total(self) -> int:
        """All steps."""
        return self.steps + self.refresher

    def shape_at(self, step: int) -> tuple[int, int]:
        """Rows and length of one step's batch."""
        if step < self.steps:
            share, lengths = step / self.steps, self.lengths
        else:
            share, lengths = (step - self.steps) / self.refresher, self.refresher_lengths
        length = max(length for start, length in lengths if share >= start)
        return max(1, self.tokens_per_step // length), length

    def mix_at(self, step: int) -> corpus.Mix:
        """What one step's batch is made of."""
        if step >= self.steps:
            return corpus.REFRESHER
        return max(pair for pair in corpus.MIXES if pair[0] <= step)[1]


def checkpoint_config(size: str, vocabulary_size: int) -> dict[str, Any]:
    """config.json of a size, as Hugging Face names things."""
    hidden, layers, heads, kv_heads, head_dim, inner = SIZES[size]
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": vocabulary_size,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": inner,
        "hidden_act": "silu",
        "max_position_embeddings": demo_tokenizer.LONGEST_TEXT,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "use_cache": True,
        "initializer_range": 0.05,
        "bos_token_id": None,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "torch_dtype": "bfloat16",
    }


class Trainer:
    """A model, its optimizer and its data; `state` is all that changes from step to step."""

    def __init__(self, plan: Plan, tokenizer: Tokenizer):
        self.plan, self.tokenizer = plan, tokenizer
        self.config = checkpoint_config(plan.size, tokenizer.get_vocab_size())
        model = Decoder(model_config(self.config), dtype=jnp.float32, rngs=nnx.Rngs(plan.seed))
        self.graph, variables = nnx.split(model)
        paths, self.structure = jax.tree_util.tree_flatten_with_path(variables)
        self.names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in paths]
        parameters = dict(zip(self.names, (leaf for _, leaf in paths), strict=True))
        self.optimizer = optimizer(plan)
        self.step = 0
        self.began_with = ""  # the flag that names the finished model it began with
        self.state: dict[str, Any] = {
            "parameters": parameters,
            "optimizer": self.optimizer.init(parameters),
        }
        self._update = jax.jit(self.update, donate_argnums=0)
        self._loss = jax.jit(self.loss)

    @property
    def parameter_count(self) -> int:
        return sum(leaf.size for leaf in self.state["parameters"].values())

    def model(self, parameters: dict[str, jax.Array]) -> Decoder:
        """The model with these parameters."""
        leaves = [parameters[name] for name in self.names]
        return nnx.merge(self.graph, jax.tree_util.tree_unflatten(self.structure, leaves))

    def loss(self, parameters: dict[str, jax.Array], batch: Batch) -> jax.Array:
        """Mean cross-entropy over the tokens that count."""
        logits = self.model(parameters).score(jnp.asarray(batch.tokens[:, :-1]))
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.tokens[:, 1:])
        return jnp.sum(losses * batch.weights) / jnp.sum(batch.weights)

    def update(self, state: dict[str, Any], batch: Batch) -> tuple[dict[str, Any], jax.Array]:
        """One step of gradient descent."""
        loss, gradients = jax.value_and_grad(self.loss)(state["parameters"], batch)
        changes, optimizer_state = self.optimizer.update(
            gradients, state["optimizer"], state["parameters"]
        )
        parameters = optax.apply_updates(state["parameters"], changes)
        return {"parameters": parameters, "optimizer": optimizer_state}, loss

    def advance(self) -> float:
        """Train one step and return its loss."""
        rows, length = self.plan.shape_at(self.step)
        mix = self.plan.mix_at(self.step)
        batch = batch_at(self.tokenizer, self.plan.seed, self.step, rows, length, mix=mix)
        self.state, loss = self._update(self.state, batch)
        self.step += 1
        return float(loss)

    def start_from(self, folder: Path) -> None:
        """Take the parameters of a finished model; the optimizer starts afresh."""
        variables = nnx.split(load_model(folder))[1]
        leaves = jax.tree.leaves(variables)
        ours = self.state["parameters"]
        if [leaf.shape for leaf in leaves] != [ours[name].shape for name in self.names]:
            raise SystemExit(
                f"{folder} holds no model of size {self.plan.size!r}: give its --size."
            )
        parameters = {
            name: leaf.astype(jnp.float32) for name, leaf in zip(self.names, leaves, strict=True)
        }
        self.state = {"parameters": parameters, "optimizer": self.optimizer.init(parameters)}
        self.began_with = f" --from {folder}"

    def held_out_loss(self) -> float:
        """The loss on held-out documents, always the same ones."""
        rows, length = self.plan.shape_at(0)
        batches = (
            batch_at(self.tokenizer, 0, step, rows, length, held_out=True)
            for step in range(HELD_OUT_BATCHES)
        )
        return float(np.mean([self._loss(self.state["parameters"], batch) for batch in batches]))

    def save(self, checkpointer: ocp.training.Checkpointer) -> None:
        """Write a checkpoint of this step."""
        checkpointer.save(self.step, self.state, overwrite=True)  # pyrefly: ignore

    def restore(self, checkpointer: ocp.training.Checkpointer) -> None:
        """Continue from the latest checkpoint, if there is one."""
        latest = checkpointer.latest
        if latest is not None:
            shapes = jax.tree.map(as_shape, self.state)
            self.state = checkpointer.load(latest.step, shapes)  # pyrefly: ignore
            self.step = latest.step


def as_shape(leaf: jax.Array) -> jax.ShapeDtypeStruct:
    """A leaf's shape, type and place without its data."""
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)


def optimizer(plan: Plan) -> optax.GradientTransformation:
    """AdamW with gradient clipping; norms do not decay."""
    is_matrix = partial(jax.tree.map, lambda leaf: leaf.ndim > 1)
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(schedule(plan), b1=0.9, b2=0.98, weight_decay=0.05, mask=is_matrix),
    )


def schedule(plan: Plan) -> optax.Schedule:
    """Warm up, stay, fall to zero; then, for the refresher, warm up and fall to zero again."""
    warmup, decay = min(plan.warmup, plan.steps), int(plan.steps * plan.decay_share)
    again = min(plan.warmup, plan.refresher)
    return optax.join_schedules(
        [
            optax.linear_schedule(0.0, plan.learning_rate, warmup),
            optax.constant_schedule(plan.learning_rate),
            optax.linear_schedule(plan.learning_rate, 0.0, decay),
            optax.linear_schedule(0.0, plan.refresher_rate, again),
            optax.linear_schedule(plan.refresher_rate, 0.0, plan.refresher - again),
        ],
        [warmup, max(warmup, plan.steps - decay), plan.steps, plan.steps + again],
    )
