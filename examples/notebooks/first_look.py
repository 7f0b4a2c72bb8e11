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
# # A first look
#
# One engine in this process, on the demo model that ships with jengine: what it answers and how
# sure it is, what was compiled, what its memory consists of, and what happens inside the model.
#
# This file is a notebook: open it in Jupyter with the jupytext extension, in VS Code as it is, or
# turn it into an `.ipynb` with `jupytext --to ipynb first_look.py`
# (`pip install 'jengine[notebooks]'`).

# %%
import matplotlib.pyplot as plt
import numpy as np

from jengine import LLM, SamplingParams

llm = LLM(
    "demo",
    max_num_seqs=4,
    max_model_len=512,
    compilation_config={
        "variants": ["scored"],  # the one that knows log-probabilities of prompts, too
        "decode_rows": [4],
        "prefill_tokens": [128],
    },
)

# %% [markdown]
# ## How sure was it?
#
# With `logprobs`, an output shows its tokens coloured: the redder, the less likely the model found
# what was chosen. Hover over a token to see what else it considered.

# %%
params = SamplingParams(temperature=1.0, top_p=0.95, max_tokens=60, logprobs=4, seed=3)
llm.generate("Once upon a time", params)[0]

# %% [markdown]
# A prompt can be read in the same way, without generating more than one token: here the model is
# sure of the sum, and surprised by a wrong one.

# %%
params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=3)
question = "<|im_start|>user\nWhat is 23 + 45?<|im_end|>\n<|im_start|>assistant\n"
right, wrong = llm.generate([f"{question}23 + 45 = 68.", f"{question}23 + 45 = 61."], params)
right

# %%
wrong

# %% [markdown]
# The same numbers as arrays, for those who compute with them:

# %%
rows = [right.prompt_token_ids, wrong.prompt_token_ids]
likely, unlikely = np.asarray(llm.compute_logprobs(rows)).sum(axis=1)
print(f"log p of the right text {likely:.1f}, of the wrong one {unlikely:.1f}")
assert likely > unlikely + 5

# %% [markdown]
# ## What was compiled
#
# Every program that the engine made is in the ledger, with what it cost and how often it ran. A
# step is padded to the smallest bucket that holds it.

# %%
print(llm.ledger)

# %% [markdown]
# ## What its memory consists of
#
# Weights, the paged cache, what the device keeps of each row, and the scratch memory of the largest
# step. On a GPU the cache gets what the rest leaves over.

# %%
llm.memory()

# %% [markdown]
# ## Prompts that begin alike
#
# Whole blocks of a beginning that was seen before are found in the cache and not computed again.

# %%
prefix = "Once upon a time there was a little fox who lived near the river. " * 4
params = SamplingParams(temperature=0, max_tokens=8)
llm.generate(prefix, params)
for output in llm.generate([prefix + "It", prefix + "He"], params):
    cached, total = output.num_cached_tokens, len(output.prompt_token_ids)
    print(f"{cached} of {total} prompt tokens came from the cache")
    assert cached > total // 2
print(llm.stats())

# %% [markdown]
# ## Inside the model
#
# Any tap point can be captured while the engine runs: here the residual stream behind each layer.
# Its size shows how much every layer adds. (A step that captures is a separate program, compiled
# when it is first asked for.)

# %%
print(*(point.name for point in llm.tap_points), sep=", ")
params = SamplingParams(temperature=0, max_tokens=1)
points = ["embed", "layers.*.output"]
output = llm.generate("Once upon a time there was a", params, capture=points)[0]
sizes = {name: np.linalg.norm(values, axis=-1) for name, values in output.captured.items()}

plt.figure(figsize=(6, 3))
plt.plot(list(sizes), [size.mean() for size in sizes.values()], marker="o")
plt.ylabel("mean norm of a position")
plt.xticks(rotation=20)
plt.show()

# %%
llm.shutdown()
