"""The simplest generator: the most likely token after every prompt, one token per step.

In: a model, a tokenizer, prompts. Out: Completions. It checks the model while no engine is at hand
(in the trainer), and is the yardstick for the engine's greedy answers.
Must not know: what the prompts are about.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from tokenizers import Tokenizer

from jengine.models.context import MixInputs, StepContext
from jengine.models.decoder import Decoder

__all__ = ["Completion", "Generate", "greedy_generator"]

ROWS = 32
LENGTH_STEP = 64


class Completion(NamedTuple):
    """Generated text, and whether the model ended it itself."""

    text: str
    finished: bool


# Prompts as the model reads them, and how many tokens each may add.
Generate = Callable[[Sequence[str], int], list[Completion]]


def greedy_generator(model: Decoder, tokenizer: Tokenizer, stops: Sequence[int]) -> Generate:
    """A function that completes prompts greedily until one of the `stops` tokens."""
    graph, variables = nnx.split(model)

    def generate(prompts: Sequence[str], max_tokens: int) -> list[Completion]:
        completions: list[Completion] = []
        for first in range(0, len(prompts), ROWS):
            part = [tokenizer.encode(prompt).ids for prompt in prompts[first : first + ROWS]]
            grown = grow(graph, variables, part, max_tokens)
            pairs = zip(part, grown, strict=True)
            completions += [completion(tokenizer, ids[len(p) :], stops) for p, ids in pairs]
        return completions

    return generate


def completion(tokenizer: Tokenizer, ids: Sequence[int], stops: Sequence[int]) -> Completion:
    """Cut the generated tokens at the first stop token."""
    for index, token in enumerate(ids):
        if token in stops:
            return Completion(tokenizer.decode(ids[:index]), True)
    return Completion(tokenizer.decode(ids), False)


def grow(
    graph: Any, variables: Any, prompts: Sequence[Sequence[int]], max_tokens: int
) -> list[list[int]]:
    """Each prompt with `max_tokens` more tokens."""
    longest = max(len(prompt) for prompt in prompts) + max_tokens
    # Rounded up, so that few programs are compiled.
    tokens = np.zeros((ROWS, -(-longest // LENGTH_STEP) * LENGTH_STEP), np.int32)
    lengths = np.ones(ROWS, np.int32)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = prompt
        lengths[row] = len(prompt)
    filled = np.asarray(fill(graph, variables, tokens, lengths))
    return [filled[row, : len(prompt) + max_tokens].tolist() for row, prompt in enumerate(prompts)]


@partial(jax.jit, static_argnums=0)
def fill(graph: Any, variables: Any, tokens: Array, lengths: Array) -> Array:
    """Replace everything behind each row's prompt by what the model finds most likely."""
    model: Decoder = nnx.merge(graph, variables)
    rows, length = tokens.shape
    layers = model.config.layers
    heads = layers[0].mixer
    shape = (len(layers), 2, rows, length, heads.num_kv_heads, heads.head_dim)

    def step(at: Array, carried: tuple[Array, Array]) -> tuple[Array, Array]:
        tokens, cache = carried
        now = jnp.broadcast_to(at, (rows, 1))
        every_row = jnp.arange(rows)[:, None]
        context = StepContext(now, every_row, partial(attend_until, at), length, cache)
        hidden = model(jax.lax.dynamic_slice_in_dim(tokens, at, 1, 1), context)
        likely = jnp.argmax(model.logits(hidden)[:, 0], axis=-1).astype(tokens.dtype)
        given = jax.lax.dynamic_index_in_dim(tokens, at + 1, 1, keepdims=False)
        following = jnp.where(at + 1 < lengths, given, likely)
        tokens = jax.lax.dynamic_update_index_in_dim(tokens, following, at + 1, 1)
        return tokens, context.caches

    start = (tokens, jnp.zeros(shape, jnp.float32))
    return jax.lax.fori_loop(0, length - 1, step, start)[0]


def attend_until(at: Array, cache: Array, layer: int, inputs: MixInputs) -> tuple[Array, Array]:
    """One token per row over a dense cache [layers, 2, rows, length, KV heads, dim]."""
    q, k, v = inputs.heads()
    both = jnp.stack((k, v))[None]  # [1, 2, R, 1, KV, D]
    cache = jax.lax.dynamic_update_slice(cache, both, (layer, 0, 0, at, 0, 0))
    keys, values = cache[layer]
    grouped = q.reshape(q.shape[0], k.shape[2], -1, q.shape[-1])  # [R, KV, G, D]
    scores = jnp.einsum("rkgd,rskd->rkgs", grouped, keys) * q.shape[-1] ** -0.5
    seen = jnp.broadcast_to(jnp.arange(keys.shape[1]) <= at, scores.shape)
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
    return jnp.einsum("rkgs,rskd->rkgd", weights, values).reshape(q.shape), cache
