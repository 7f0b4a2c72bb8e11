"""A loop of reinforcement learning whose trainer and samplers take turns with the memory.

The demo model learns to answer a question that it does not know, from a reward alone. While it is
trained, both engines sleep: their caches are gone, and so are their forms of the weights. One
samples in float32 with the trainer's own arrays, one in int8 with an adapter beside it; both are
given the new parameters before they wake, and nothing is compiled twice. The time of each part is
printed. Needs optax: pip install '.[train]'.
"""

import random
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jengine import LLM, LoRARequest, SamplingParams, load_model

PROMPTS, ANSWERS, LONGEST, WIDTH, ROUNDS = 4, 4, 24, 64, 3
ROWS = PROMPTS * ANSWERS
SETTINGS = {
    "tokenizer": "demo", "enable_sleep_mode": True, "max_model_len": WIDTH,
    "max_num_seqs": ROWS, "enforce_eager": True, "show_progress": False,
    "compilation_config": {"decode_rows": [ROWS], "prefill_tokens": [256], "variants": ["full"]},
}  # fmt: skip
seconds: dict[str, list[float]] = defaultdict(list)


@contextmanager
def timed(part: str) -> Iterator[None]:
    """Note how long a part took."""
    began = time.perf_counter()
    yield
    seconds[part].append(time.perf_counter() - began)


@nnx.jit
def train(
    model: nnx.Module, optimizer: nnx.Optimizer, tokens: jax.Array, answered: jax.Array,
    advantage: jax.Array,
) -> jax.Array:  # fmt: skip
    """One policy-gradient step; `answered` says which next tokens are the answer's."""

    def loss(model: nnx.Module) -> jax.Array:
        scores = jax.nn.log_softmax(model.score(tokens[:, :-1]))
        logprobs = jnp.take_along_axis(scores, tokens[:, 1:, None], axis=-1)[..., 0]
        return -jnp.sum(logprobs * answered * advantage[:, None]) / jnp.sum(answered)

    value, gradients = nnx.value_and_grad(loss)(model)
    optimizer.update(model, gradients)
    return value


def question(llm: LLM, left: int, right: int) -> list[int]:
    """The tokens of a sum, in words that the model was not trained on."""
    messages = [{"role": "user", "content": f"How much do {left} and {right} make?"}]
    return llm.get_tokenizer().apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False
    )


def rollout(llm: LLM, sums: list[tuple[int, int]], seed: int) -> tuple[np.ndarray, ...]:
    """Several answers to each sum: tokens, which of them are answers, advantages, rewards."""
    params = SamplingParams(n=ANSWERS, temperature=1.0, max_tokens=LONGEST, seed=seed)
    outputs = llm.generate([question(llm, *pair) for pair in sums], params, use_tqdm=False)
    tokens, answered = np.zeros((ROWS, WIDTH), np.int32), np.zeros((ROWS, WIDTH - 1), bool)
    rewards = np.zeros((PROMPTS, ANSWERS), np.float32)
    for index, (output, (left, right)) in enumerate(zip(outputs, sums, strict=True)):
        for number, answer in enumerate(output.outputs):
            whole = [*output.prompt_token_ids, *answer.token_ids]
            row, begin = index * ANSWERS + number, len(output.prompt_token_ids)
            tokens[row, : len(whole)] = whole
            answered[row, begin - 1 : len(whole) - 1] = True
            # One for the right sum, and a little for any answer that ends.
            right_sum = answer.text.rstrip(".").endswith(f"= {left + right}")
            rewards[index, number] = right_sum + 0.1 * (answer.finish_reason == "stop")
    advantage = rewards - rewards.mean(axis=1, keepdims=True)
    return tokens, answered, advantage.reshape(-1), rewards


def adapter(llm: LLM, key: jax.Array) -> dict[str, np.ndarray]:
    """A small change of one matrix in each layer, as a trainer of adapters would bring it."""
    hidden, matrices = llm.engine.model.hidden_size, {}
    for layer in range(len(llm.engine.model.layers)):
        name = f"model.layers.{layer}.self_attn.o_proj"
        inputs = np.asarray(jax.random.normal(jax.random.fold_in(key, layer), (4, hidden)))
        matrices[f"{name}.lora_A.weight"] = inputs * 0.01
        matrices[f"{name}.lora_B.weight"] = np.ones((hidden, 4), np.float32) * 0.01
    return matrices


def main() -> None:
    model = load_model("demo", dtype="float32")
    optimizer = nnx.Optimizer(model, optax.adam(1e-4), wrt=nnx.Param)
    with timed("start"):
        exact = LLM(model, **SETTINGS)
        rounded = LLM(model, quantization="int8", enable_lora=True, max_lora_rank=8, **SETTINGS)
    engines, rng = {"float32": exact, "int8": rounded}, random.Random(0)
    request = LoRARequest("changed", 1, "")
    for step in range(ROUNDS):
        sums = [(rng.randint(10, 99), rng.randint(10, 99)) for _ in range(PROMPTS)]
        with timed("generate, float32"):
            tokens, answered, advantage, rewards = rollout(exact, sums, step)
        with timed("generate, int8 with an adapter"):
            rounded.add_lora(request, adapter(rounded, jax.random.key(step)), alpha=4)
            greedy = SamplingParams(temperature=0, max_tokens=LONGEST)
            rounded.generate(
                question(rounded, *sums[0]), greedy, use_tqdm=False, lora_request=request
            )
        with timed("sleep"):
            for llm in engines.values():
                llm.sleep(level=2)
        with timed("train step"):
            train(model, optimizer, tokens, answered, advantage).block_until_ready()
        for name, llm in engines.items():
            with timed(f"update, {name}"):
                version = llm.update_params(model)
        with timed("wake up"):
            assert all(llm.wake_up() for llm in engines.values())
        print(f"round {step}: reward {rewards.mean():.2f}, then weights {version}")
    late = {name: llm.stats().compiles_after_warm_up for name, llm in engines.items()}
    print(f"programs compiled while it ran: {late}")
    for part, times in seconds.items():
        print(f"{part:32} first {times[0]:6.2f} s, last {times[-1]:6.2f} s")
    for llm in engines.values():
        llm.shutdown()


if __name__ == "__main__":
    main()
