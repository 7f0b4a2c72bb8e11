# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Reinforcement learning on live parameters
#
# The demo model adds two numbers whenever it understands the question. It was never asked "How much
# do 23 and 45 make?", and often declines. Here it learns what that means from a reward alone: one
# point for the right answer, nothing otherwise.
#
# The engine samples with **the very arrays that optax trains**, in one process. Nothing is copied,
# written to disk or compiled again; and the sampler's log-probabilities are the trainer's.
#
# How to open this file as a notebook: see `first_look.py`.

# %%
import random

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

from jengine import LLM, SamplingParams, load_model

# %% [markdown]
# ## One model, two users
#
# Training wants float32; the engine takes the module as it is.

# %%
model = load_model("demo", dtype="float32")

PROMPTS, ANSWERS, LONGEST, WIDTH = 8, 4, 24, 64
ROWS = PROMPTS * ANSWERS
llm = LLM(
    model,
    tokenizer="demo",
    max_model_len=WIDTH,
    max_num_seqs=ROWS,
    compilation_config={
        "variants": ["full"],  # sampling with log-probabilities
        "decode_rows": [ROWS],
        "prefill_tokens": [512],
    },
)
tokenizer = llm.get_tokenizer()
optimizer = nnx.Optimizer(model, optax.adam(1e-4), wrt=nnx.Param)

# %% [markdown]
# ## Questions and their reward


# %%
def question(left: int, right: int) -> list[int]:
    """The tokens of a question that the model does not know."""
    messages = [{"role": "user", "content": f"How much do {left} and {right} make?"}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)


def reward(text: str, left: int, right: int) -> float:
    """One for the right sum, however it begins."""
    return float(text.rstrip(".").endswith(f"= {left + right}"))


def examined() -> float:
    """Ask a fixed set of sums, print the first answers, and return the share of right ones."""
    sums = [(left, right) for left in range(11, 99, 22) for right in range(12, 99, 11)]
    greedy = SamplingParams(temperature=0, max_tokens=LONGEST)
    outputs = llm.generate([question(*pair) for pair in sums], greedy, use_tqdm=False)
    for pair, output in list(zip(sums, outputs, strict=True))[:6]:
        print(*pair, "->", output.outputs[0].text, f"(weights {output.weight_version})")
    scores = [reward(one.outputs[0].text, *pair) for one, pair in zip(outputs, sums, strict=True)]
    return float(np.mean(scores))


before = examined()
print(f"right: {before:.0%}")


# %% [markdown]
# ## One step
#
# Several answers to each question are compared with each other: what did better than its group
# becomes likelier, what did worse less likely.


# %%
def answer_logprobs(model: nnx.Module, tokens: jax.Array) -> jax.Array:
    """log p of each token after the first, by the trainer's own forward pass."""
    scores = jax.nn.log_softmax(model.score(tokens[:, :-1]))
    return jnp.take_along_axis(scores, tokens[:, 1:, None], axis=-1)[..., 0]


@nnx.jit
def train(
    model: nnx.Module,
    optimizer: nnx.Optimizer,
    tokens: jax.Array,  # i32 [rows, width]: question, answer, padding
    answered: jax.Array,  # bool [rows, width - 1]: whether the next token is the answer's
    advantage: jax.Array,  # f32 [rows]
) -> jax.Array:
    """One policy-gradient step; returns the log-probabilities before it."""

    def loss(model: nnx.Module) -> tuple[jax.Array, jax.Array]:
        logprobs = answer_logprobs(model, tokens)
        gain = jnp.sum(logprobs * answered * advantage[:, None]) / jnp.sum(answered)
        return -gain, logprobs

    (_, logprobs), gradients = nnx.value_and_grad(loss, has_aux=True)(model)
    optimizer.update(model, gradients)
    return logprobs


def rollout(key: jax.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Sampled answers: tokens, which of them are answers, the sampler's logprobs, rewards."""
    sums = [(rng.randint(10, 99), rng.randint(10, 99)) for _ in range(PROMPTS)]
    asked = [pair for pair in sums for _ in range(ANSWERS)]
    prompts = [question(*pair) for pair in asked]
    made = llm.generate_arrays(prompts, key=key, sampling_params=sampling)
    tokens = np.zeros((ROWS, WIDTH), np.int32)
    answered = np.zeros((ROWS, WIDTH - 1), bool)
    logprobs = np.zeros((ROWS, WIDTH - 1), np.float32)
    rewards = np.zeros(ROWS, np.float32)
    answers = zip(prompts, np.asarray(made.tokens), made.lengths.tolist(), strict=True)
    for row, (prompt, answer, length) in enumerate(answers):
        begin, end = len(prompt), len(prompt) + length
        tokens[row, :end] = [*prompt, *answer[:length]]
        answered[row, begin - 1 : end - 1] = True
        logprobs[row, begin - 1 : end - 1] = made.logprobs[row, :length]
        text = tokenizer.decode(answer[:length], skip_special_tokens=True)
        rewards[row] = reward(text, *asked[row])
    return tokens, answered, logprobs, rewards


# %% [markdown]
# ## The loop
#
# `update_params` hands the trained arrays to the engine between two steps and returns the version
# of the weights, which every later output carries.

# %%
STEPS = 16
sampling = SamplingParams(temperature=1.0, max_tokens=LONGEST)
rng = random.Random(0)
history, differences = [], []
llm.wait_until_warm()  # engines start before every program is compiled
programs = len(llm.ledger.entries)
for step in range(STEPS):
    tokens, answered, sampled, rewards = rollout(jax.random.key(step))
    groups = rewards.reshape(PROMPTS, ANSWERS)
    advantage = (groups - groups.mean(axis=1, keepdims=True)).reshape(-1)
    scored = train(model, optimizer, tokens, answered, advantage)
    version = llm.update_params(model)
    history.append(rewards.mean())
    differences.append(np.abs(np.asarray(scored) - sampled)[answered].max())
    print(
        f"step {step:2d}  reward {history[-1]:.2f}  weights {version:2d}"
        f"  largest difference of logprobs {differences[-1]:.1e}"
    )

# %%
plt.figure(figsize=(6, 3))
plt.plot(history, marker="o")
plt.xlabel("step")
plt.ylabel("share of right answers")
plt.ylim(0, 1.02)
plt.show()

# %% [markdown]
# ## What it learned
#
# The same questions as in the beginning. No program was compiled on the way.

# %%
after = examined()
print(f"right: {before:.0%} before, {after:.0%} now")

assert after > before + 0.3 and np.mean(history[-4:]) > np.mean(history[:4]) + 0.3
assert max(differences) < 1e-4, "sampler and trainer agree"
assert len(llm.ledger.entries) == programs, "nothing was compiled"
llm.shutdown()
