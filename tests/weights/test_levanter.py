"""A model of Levanter's own modules becomes ours by `mapping="levanter"`, and computes the same.

Skipped where Levanter is not installed: it is no dependency of the tests, and large.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jengine import LLM, from_hf

hax = pytest.importorskip("haliax")
llama = pytest.importorskip("levanter.models.llama")
qwen = pytest.importorskip("levanter.models.qwen")

WIDTH, HEADS, KV, MLP, LAYERS, VOCAB, LENGTH = 32, 4, 2, 48, 3, 40, 11
SIZES: dict[str, Any] = {
    "hidden_dim": WIDTH, "intermediate_dim": MLP, "num_layers": LAYERS, "num_heads": HEADS,
    "num_kv_heads": KV, "gradient_checkpointing": False,
}  # fmt: skip
CONFIG: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": WIDTH, "intermediate_size": MLP, "dtype": "float32",
    "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV,
    "head_dim": WIDTH // HEADS, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "eos_token_id": None,
}  # fmt: skip


def theirs(config: Any, seed: int) -> Any:
    """A model of Levanter's with random weights, norms included."""
    model = config.model_type.init(hax.Axis("vocab", VOCAB), config, key=jax.random.key(seed))
    leaves, tree = jax.tree.flatten(model)
    keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
    drawn = [
        one + 0.2 * jax.random.normal(key, one.shape) for one, key in zip(leaves, keys, strict=True)
    ]
    return jax.tree.unflatten(tree, drawn)


def log_probabilities(model: Any, tokens: np.ndarray) -> np.ndarray:
    """log p(token | tokens before it) by Levanter's forward, without the first one's."""
    axes = hax.Axis("batch", len(tokens)), hax.Axis("position", LENGTH)
    mask = llama.AttentionMask.causal()
    logits = model(hax.named(jnp.asarray(tokens), axes), attn_mask=mask)
    scores = jax.nn.log_softmax(logits.rearrange((*axes, "vocab")).array[:, :-1])
    return np.take_along_axis(np.asarray(scores), tokens[:, 1:, None], axis=2)[..., 0]


@pytest.mark.parametrize(
    ("kind", "architecture", "tied"),
    [
        (llama.LlamaConfig, "LlamaForCausalLM", False),
        (llama.LlamaConfig, "LlamaForCausalLM", True),
        (qwen.Qwen3Config, "Qwen3ForCausalLM", False),
    ],
)
def test_log_probabilities_are_those_of_levanter(kind: Any, architecture: str, tied: bool) -> None:
    config = kind(tie_word_embeddings=tied, **SIZES)
    given = {**CONFIG, "architectures": [architecture], "tie_word_embeddings": tied}
    first, second = theirs(config, 0), theirs(config, 7)
    tokens = np.random.default_rng(0).integers(0, VOCAB, (2, LENGTH))
    model = from_hf(first, given, mapping="levanter")
    with LLM(model, skip_tokenizer_init=True, enforce_eager=True, show_progress=False) as llm:
        for their in (first, second):
            llm.update_params(their, mapping="levanter")
            found = np.asarray(llm.compute_logprobs(tokens.tolist()))[:, 1:]
            np.testing.assert_allclose(found, log_probabilities(their, tokens), atol=2e-5)
