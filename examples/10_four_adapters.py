"""Train four LoRA adapters at once with reinforcement learning, and sample all four in one batch.

Each adapter of the demo model learns to write stories with much of one letter. A round: the engine
samples a group of stories from each adapter, in the same steps; a story's advantage is its reward
beside its group's (as in GRPO); one jitted function updates all adapters; the engine takes the new
matrices as arrays, without files and without compiling anything.
Needs optax: pip install '.[train]'.
"""

import time

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jengine import LLM, LoRARequest, SamplingParams, load_model

LETTERS = "aeou"
RANK, GROUP, TOKENS, ROUNDS = 8, 24, 24, 16
PROMPT = "Once upon a time"

MODEL = load_model("demo", dtype="float32")
GRAPH, STATE = nnx.split(MODEL)
ADAPTED = [f"layers.{number}.mlp.down" for number in range(len(MODEL.layers))]
OPTIMIZER = optax.adam(1e-2)
Adapter = dict[str, dict[str, jax.Array]]  # path of a linear layer -> matrices "a" and "b"


def new_adapters(key: jax.Array) -> Adapter:
    """Matrices of all four, along a leading axis: "a" is random, "b" zero."""
    found: Adapter = {}
    for number, path in enumerate(ADAPTED):
        inputs, outputs = MODEL.layers[number].mlp.down.weight.shape
        drawn = jax.random.normal(jax.random.fold_in(key, number), (len(LETTERS), inputs, RANK))
        b = jnp.zeros((len(LETTERS), RANK, outputs))
        found[path] = {"a": drawn / jnp.sqrt(inputs), "b": b}
    return found


def log_probs(adapter: Adapter, tokens: jax.Array) -> jax.Array:
    """Log-probabilities of the tokens after the first, under one adapter; tokens [B, T]."""
    model = nnx.merge(GRAPH, STATE)
    for layer, path in zip(model.layers, ADAPTED, strict=True):
        added = adapter[path]["a"] @ adapter[path]["b"]
        layer.mlp.down.weight = nnx.Param(layer.mlp.down.weight[...] + added)
    scores = jax.nn.log_softmax(model.score(tokens[:, :-1]))
    return jnp.take_along_axis(scores, tokens[:, 1:, None], axis=2)[..., 0]


@jax.jit
def train(
    adapters: Adapter, state: optax.OptState, tokens: jax.Array, rewards: jax.Array
) -> tuple[Adapter, optax.OptState]:
    """One update of all adapters: tokens [adapters, group, length], rewards [adapters, group]."""

    def loss(adapters: Adapter) -> jax.Array:
        centred = rewards - rewards.mean(1, keepdims=True)
        advantages = centred / (rewards.std(1, keepdims=True) + 1e-4)
        answers = jax.vmap(log_probs)(adapters, tokens)[..., -TOKENS:]
        return -(advantages[..., None] * answers).mean(axis=(1, 2)).sum()

    gradients = jax.grad(loss)(adapters)
    updates, state = OPTIMIZER.update(gradients, state)
    return optax.apply_updates(adapters, updates), state


def main() -> None:
    loras = [LoRARequest(f"much of {letter}", n) for n, letter in enumerate(LETTERS, start=1)]
    rows = len(LETTERS) * GROUP
    sizes = {"variants": ["sampled"], "decode_rows": [rows], "prefill_tokens": [128]}
    llm = LLM(
        "demo", dtype="float32", enable_lora=True, max_loras=len(loras), max_lora_rank=RANK,
        max_num_seqs=rows, max_model_len=64, compilation_config=sizes, show_progress=False,
    )  # fmt: skip
    adapters = new_adapters(jax.random.key(0))
    state = OPTIMIZER.init(adapters)
    history = []
    for step in range(ROUNDS):
        began = time.perf_counter()
        for n, lora in enumerate(loras):  # new matrices under the same name
            llm.add_lora(lora, jax.tree.map(lambda x, n=n: x[n], adapters))
        told = time.perf_counter()
        params = SamplingParams(
            temperature=1.0, n=GROUP, max_tokens=TOKENS, ignore_eos=True, seed=step
        )
        prompts = [PROMPT] * len(loras)
        outputs = llm.generate(prompts, params, use_tqdm=False, lora_request=loras)
        sampled = time.perf_counter()
        tokens = jnp.array([
            [output.prompt_token_ids + answer.token_ids for answer in output.outputs]
            for output in outputs
        ])  # fmt: skip
        rewards = jnp.array([
            [answer.text.count(letter) / max(len(answer.text), 1) for answer in output.outputs]
            for letter, output in zip(LETTERS, outputs, strict=True)
        ])  # fmt: skip
        adapters, state = jax.block_until_ready(train(adapters, state, tokens, rewards))
        trained = time.perf_counter()
        history.append(rewards.mean(1))
        shares = "  ".join(f"{a}: {r:.3f}" for a, r in zip(LETTERS, history[-1], strict=True))
        times = (told - began, sampled - told, trained - sampled)
        parts = " ".join(f"{1e3 * one:.0f}" for one in times)
        print(f"round {step:2d}  {shares}   ms to load, sample, train: {parts}")
    for lora, output in zip(loras, outputs, strict=True):
        print(f"{lora.lora_name}: {output.outputs[0].text!r}")
    assert all(history[-1] > history[0]), "every adapter has learned its letter"
    print("learned; programs compiled after warm-up:", llm.ledger.compiles_after_warm_up)
    llm.shutdown()


if __name__ == "__main__":
    main()
