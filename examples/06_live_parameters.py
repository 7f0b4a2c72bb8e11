"""Train and sample in turn on one copy of the weights, in one process.

A small model learns to count by threes; every few steps the engine, which holds the very same
arrays, writes down what it has learned. Nothing is copied and nothing is compiled again.
Needs optax: pip install '.[train]'.
"""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jengine import LLM, SamplingParams, from_config

MODULUS = 60
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": MODULUS,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}


@nnx.jit
def train(model: nnx.Module, optimizer: nnx.Optimizer, tokens: jax.Array) -> jax.Array:
    """One step of ordinary next-token training."""

    def loss(model: nnx.Module) -> jax.Array:
        logits = model.score(tokens[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    value, gradients = nnx.value_and_grad(loss)(model)
    optimizer.update(model, gradients)
    return value


def sequences(key: jax.Array, count: int, length: int) -> jax.Array:
    """Rows that count by threes from a random start."""
    start = jax.random.randint(key, (count, 1), 0, MODULUS)
    return (start + 3 * jnp.arange(length)[None, :]) % MODULUS


def main() -> None:
    model = from_config(CONFIG, rngs=nnx.Rngs(0), dtype="float32")
    optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)
    small = {"variants": ["greedy"], "decode_rows": [2], "prefill_tokens": [32]}
    llm = LLM(model, skip_tokenizer_init=True, max_num_seqs=2, compilation_config=small)
    params = SamplingParams(temperature=0, max_tokens=8)
    for step in range(121):
        loss = train(model, optimizer, sequences(jax.random.key(step), 16, 24))
        if step % 30 == 0:
            version = llm.update_params(model)
            output = llm.generate([[5, 8, 11]], params)[0]
            print(f"step {step:3d}  loss {loss:.3f}  weights {version}: 5 8 11", end=" ")
            print(*output.outputs[0].token_ids)
    assert output.outputs[0].token_ids == [14, 17, 20, 23, 26, 29, 32, 35]
    print("learned; programs compiled:", len(llm.ledger.entries))
    llm.shutdown()


if __name__ == "__main__":
    main()
