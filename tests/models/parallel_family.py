"""A family with a body of its own and a weight scheme of its own, for tests of both seams.

Attention (with sinks) and MLP read the same normed activations and are added together. Weights are
prepared as [outputs, inputs], so that what the step takes is never what a checkpoint holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from jengine import LLM, SamplingParams
from jengine.config import LayerConfig, ModelConfig
from jengine.layers.initializer import Initializer
from jengine.models import registry
from jengine.models.attention import Attention
from jengine.models.context import StepContext
from jengine.models.language_model import LanguageModel
from jengine.models.linear import Embedding, Factory, Linear
from jengine.models.mlp import make_mlp
from jengine.models.norms import make_norm
from jengine.models.parameter import named_parameters
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import (
    Defaults,
    read_attention,
    read_decoder,
    read_mlp,
    read_num_layers,
)
from jengine.models.reading.hf_write import write_decoder
from jengine.models.tensors.checkpoint import Names, Piece
from jengine.models.tensors.decoder_pieces import decoder_pieces
from jengine.quantization.scheme import (
    Specs,
    Tensors,
    TensorSpec,
    WeightScheme,
    WeightShape,
)
from jengine.weights.dummy import dummy_model
from tests.models.plain_logits import plain_logits

ARCHITECTURE = "ParallelForCausalLM"
PROMPTS = [np.random.default_rng(size).integers(3, 97, size).tolist() for size in (3, 40)]
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
SETTINGS = {
    "skip_tokenizer_init": True, "max_num_seqs": 2, "enforce_eager": True, "max_model_len": 64,
}  # fmt: skip


@dataclass(frozen=True)
class Turned(WeightScheme):
    """Stored [inputs, outputs], multiplied from [outputs, inputs]."""

    @property
    def takes_declared(self) -> bool:
        return False

    def declared(self, weight: WeightShape, dtype: Any, init: Initializer) -> Specs:
        return {"weight": TensorSpec(weight.shape, weight.axes, dtype, init)}

    def prepared(self, weight: WeightShape, dtype: Any) -> Specs:
        count = len(weight.inputs)
        shape = (*weight.outputs, *weight.inputs)
        axes = (*weight.axes[count:], *weight.axes[:count])
        return {"turned": TensorSpec(shape, axes, dtype, Initializer())}

    def prepare(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        count = len(weight.inputs)
        order = [*range(count, len(weight.shape)), *range(count)]
        return {"turned": jnp.transpose(tensors["weight"], order)}

    def restore(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        count = len(weight.outputs)
        order = [*range(count, len(weight.shape)), *range(count)]
        return {"weight": jnp.transpose(tensors["turned"], order)}

    def multiply(self, weight: WeightShape, x: Array, tensors: Tensors) -> Array:
        inputs, outputs = weight.matrix
        made = x @ tensors["turned"].reshape(outputs, inputs).T
        return made.reshape(*x.shape[:-1], *weight.outputs)

    def lookup(self, weight: WeightShape, indices: Array, tensors: Tensors) -> Array:
        raise NotImplementedError("embeddings of this family are plain")

    def multiply_groups(
        self,
        weight: WeightShape,
        x: Array,
        tensors: Tensors,
        sizes: Array,
        activation: str | None = None,
    ) -> Array:
        raise NotImplementedError("this family has no experts")


class ParallelLayer(nnx.Module):
    def __init__(self, factory: Factory, layer: int) -> None:
        config = factory.config
        self.norm = make_norm(factory, (config.hidden_size,), ("embed",))
        self.attention = Attention(factory, config.layers[layer].mixer, layer)
        self.mlp = make_mlp(factory, config.layers[layer].ffn)

    def __call__(self, x: Array, context: StepContext) -> Array:
        normed = self.norm(x)
        return self.mlp(normed, residual=self.attention(normed, context, residual=x))


class Parallel(LanguageModel):
    def __init__(self, config: ModelConfig, dtype: Any, rngs: nnx.Rngs | None) -> None:
        self.config = config
        factory = Factory(config, dtype, rngs, Turned())
        self.embed = Embedding(factory, config.vocab_size, ("vocab", "embed"))
        count = len(config.layers)
        self.layers = nnx.List([ParallelLayer(factory, layer) for layer in range(count)])
        self.norm = make_norm(factory, (config.hidden_size,), ("embed",))
        shape = (config.hidden_size,), (config.vocab_size,)
        self.head = Linear(factory, *shape, ("embed", "vocab"))

    def __call__(self, tokens: Array, context: StepContext) -> Array:
        x = context.tap("embed", self.embed(tokens))
        for layer in self.layers:
            x = layer(x, context)
        return context.tap("norm", self.norm(x))

    def logits(self, hidden: Array) -> Array:
        return self.head(hidden)


class ParallelFamily:
    ARCHITECTURES = (ARCHITECTURE,)
    MODELS = "Parallel"
    NAMES = Names()
    DEFAULTS = Defaults(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_layers=2, num_heads=4,
        num_kv_heads=2, head_dim=None, max_position=512,
    )  # fmt: skip

    def read_config(self, hf: Mapping[str, object]) -> ModelConfig:
        fields = Fields(hf)
        attention = replace(read_attention(fields, self.DEFAULTS), sinks=True)
        layer = LayerConfig(attention, read_mlp(fields, self.DEFAULTS))
        layers = (layer,) * read_num_layers(fields, self.DEFAULTS)
        return read_decoder(fields, self.DEFAULTS, layers)

    def write_config(self, config: ModelConfig) -> dict[str, object]:
        return {**write_decoder(config), "model_type": "parallel"}

    def build(self, config: ModelConfig, *, dtype: Any, rngs: nnx.Rngs | None) -> LanguageModel:
        return Parallel(config, dtype, rngs)

    def pieces(self, config: ModelConfig) -> dict[str, tuple[Piece, ...]]:
        found = decoder_pieces(config, self.NAMES)
        return {
            path.replace("before_attention", "norm"): pieces
            for path, pieces in found.items()
            if "before_mlp" not in path
        }


def model_of(seed: int) -> Any:
    settings = {"architectures": [ARCHITECTURE], "initializer_range": 0.3}
    return dummy_model(registry.model_config(settings), seed=seed)


def arrays(model: Any) -> dict[str, np.ndarray]:
    return {path: np.asarray(leaf.get_value()) for path, leaf in named_parameters(model)}


def assert_answers(llm: LLM, model: Any) -> None:
    for prompt, output in zip(PROMPTS, llm.generate(PROMPTS, GREEDY, use_tqdm=False), strict=True):
        made = list(output.outputs[0].token_ids)
        best = plain_logits(model, [*prompt, *made])[len(prompt) - 1 : -1].argmax(-1)
        assert made == best.tolist()
