"""Accuracy cost of quantized weights and KV caches: KL divergence and perplexity.

`python -m jengine.bench.rounding MODEL`: schemes against the same engine in bfloat16, on the help
texts that come with Python (`pydoc_data.topics`), in pieces of 512 tokens that run in chunks of 128
and so read the cache. MODEL is a text model with a tokenizer. Hidden states are captured after the
last norm, and the model's own head makes logits of them here: whole vocabularies of all tokens
would take an engine's answers hours. A model whose published weights are rounded already may be on
the grid of a scheme; `--noise 0.08` first moves its matrices by so much of their size, all schemes'
alike, which is about what four bits change.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable, Mapping
from pydoc_data.topics import topics
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from jengine import LLM, SamplingParams
from jengine.bench.frame import Benchmark
from jengine.errors import ConfigError
from jengine.research.configurations import cache_bytes, weight_bytes
from jengine.weights.abstract import with_values

PIECE, CHUNK = 512, 128
PLAIN = "bfloat16"
SCHEMES: dict[str, dict[str, Any]] = {
    PLAIN: {},
    "int8": {"quantization": "int8"},
    "int8_per_channel": {"quantization": "int8_per_channel_weight_only"},
    "int8_with_head": {"quantization": "int8_with_head"},
    "int4": {"quantization": "int4"},
    "fp8": {"quantization": "fp8"},
    "cache int8": {"kv_cache_dtype": "int8"},
    "cache fp8": {"kv_cache_dtype": "fp8"},
}
SETTINGS: dict[str, Any] = {
    "dtype": "bfloat16", "enforce_eager": True, "max_num_seqs": 1, "max_model_len": PIECE + 1,
    "max_num_batched_tokens": CHUNK, "enable_prefix_caching": False, "show_progress": False,
    "compilation_config": {"decode_rows": [1], "prefill_tokens": [CHUNK]},
}  # fmt: skip
ONE = SamplingParams(temperature=0, max_tokens=1, detokenize=False)


class RoundedRun(NamedTuple):
    """An engine's hidden states per text piece, and the head that makes log-probabilities of
    them."""

    hidden: list[np.ndarray]  # [PIECE, hidden]
    logprobs: Callable[[np.ndarray], Array]
    weight_bytes: int
    cache_bytes: float


def measured(arguments: argparse.Namespace) -> dict[str, Any]:
    """Compare every scheme with unquantized weights and caches."""
    unknown = [name for name in arguments.schemes if name not in SCHEMES]
    if unknown:
        raise ConfigError(f"--schemes {unknown[0]!r}: expected some of {', '.join(SCHEMES)}.")
    names = [PLAIN, *(name for name in arguments.schemes if name != PLAIN)]
    pieces: list[list[int]] = []
    truth: RoundedRun | None = None
    found, moved = {}, {}
    for name in names:
        with LLM(arguments.model, **SETTINGS, **SCHEMES[name]) as llm:
            if arguments.noise:
                moved = moved or with_noise(llm.engine.loaded.parameters(), arguments.noise)
                llm.update_params(moved)
            pieces = pieces or pieces_of(llm, arguments.tokens)
            ran = run(llm, pieces)
        gc.collect()
        truth = truth or ran
        found[name] = figures(pieces, truth, ran)
        print(row(name, found[name], found[PLAIN]), flush=True)
    return {
        "model": arguments.model + f" with noise of {arguments.noise:.0%}" * bool(arguments.noise),
        "text": "pydoc_data.topics",
        "tokens": sum(map(len, pieces)),
        "schemes": found,
    }


def with_noise(parameters: Mapping[str, Array], share: float) -> dict[str, Array]:
    """Add normal noise to the layers' matrices, relative to their magnitude."""
    draw = np.random.default_rng(0)

    def moved(path: str, value: Array) -> Array:
        if not path.startswith("layers.") or value.ndim < 2:
            return value
        plain = np.asarray(value, np.float32)
        noise = draw.normal(0, share * plain.std(), plain.shape)
        return jnp.asarray(plain + noise, value.dtype)

    return {path: moved(path, value) for path, value in parameters.items()}


def pieces_of(llm: LLM, tokens: int) -> list[list[int]]:
    """Split the text's leading tokens into whole pieces."""
    text = "\n\n".join(topics[name] for name in sorted(topics))
    ids = llm.get_tokenizer().encode(text)[:tokens]
    if len(ids) < PIECE:
        raise ConfigError(f"--tokens {tokens}: expected at least {PIECE}, one piece.")
    return [list(ids[at : at + PIECE]) for at in range(0, len(ids) - PIECE + 1, PIECE)]


def run(llm: LLM, pieces: list[list[int]]) -> RoundedRun:
    """Hidden states of all pieces, and the head with the engine's weights."""
    outputs = (llm.generate([ids], ONE, use_tqdm=False, capture="norm")[0] for ids in pieces)
    hidden = [np.asarray((one.captured or {})["norm"][:PIECE]) for one in outputs]
    model: Any = with_values(llm.engine.declared, llm.engine.loaded.parameters())
    graph, state = nnx.split(model)
    jitted = jax.jit(lambda state, x: jax.nn.log_softmax(nnx.merge(graph, state).logits(x)))
    return RoundedRun(hidden, lambda x: jitted(state, x), weight_bytes(llm), cache_bytes(llm))


def figures(pieces: list[list[int]], truth: RoundedRun, ran: RoundedRun) -> dict[str, Any]:
    """KL(reference || scheme) per token in nats, and perplexity."""
    divergences, losses = [], []
    for ids, right, own in zip(pieces, truth.hidden, ran.hidden, strict=True):
        divergence, loss = compared(truth.logprobs(right), ran.logprobs(own), jnp.asarray(ids))
        divergences.append(np.asarray(divergence))
        losses.append(np.asarray(loss))
    kl = np.concatenate(divergences)
    return {
        "kl": float(kl.mean()),
        "kl_p99": float(np.quantile(kl, 0.99)),
        "perplexity": float(np.exp(np.concatenate(losses).astype(np.float64).mean())),
        "weight_bytes": ran.weight_bytes,
        "cache_bytes_per_token": ran.cache_bytes,
    }


@jax.jit
def compared(truth: Array, found: Array, ids: Array) -> tuple[Array, Array]:
    """KL per position, and -log p of every token but the first."""
    given = jnp.take_along_axis(found[:-1], ids[1:, None], 1)[:, 0]
    return jnp.sum(jnp.exp(truth) * (truth - found), -1), -given


def row(name: str, one: Mapping[str, Any], plain: Mapping[str, Any]) -> str:
    """One printed line."""
    change = one["perplexity"] / plain["perplexity"] - 1
    return (
        f"{name:<18} KL {one['kl']:.5f}, {one['kl_p99']:.4f} at 99 %; perplexity "
        f"{one['perplexity']:.4f} ({change:+.2%}); {one['weight_bytes'] / 1e6:.1f} MB of weights"
    )


FLAGS = {
    "model": {},
    "--schemes": {"nargs": "*", "default": list(SCHEMES), "metavar": "NAME"},
    "--tokens": 20480,
    "--noise": 0.0,
}
main = Benchmark("rounding", __doc__, FLAGS, measured).main


if __name__ == "__main__":
    raise SystemExit(main())
