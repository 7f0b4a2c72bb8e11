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
# # Finding a story again: embeddings as a map
#
# A model that writes can also embed: `runner="pooling"` makes one vector of the hidden states of a
# text. Here the demo model first writes a small library of stories, then embeds them. The vectors
# are drawn as a map, each story looks for another one about the same hero, and a small matrix
# learns from one half of the library to do that better on the other.
#
# With a published embedder (BERT, Qwen3-Embedding, a folder of sentence-transformers) only the name
# of the model changes. How to open this file as a notebook: see `first_look.py`.

# %%
import matplotlib.pyplot as plt
import numpy as np

from jengine import LLM, SamplingParams

HEROES = ["pirate", "cat", "dragon", "baker", "robot", "princess"]
EACH = 80  # stories of each hero

# %% [markdown]
# ## A library
#
# Each story is sampled with a seed of its own, so the library is always the same.

# %%
asked = [(hero, number) for hero in HEROES for number in range(EACH)]
with LLM("demo", max_num_seqs=16, max_model_len=256, enforce_eager=True) as writer:
    conversations = [
        [{"role": "user", "content": f"Tell me a story about a {hero}."}] for hero, _ in asked
    ]
    params = [
        SamplingParams(temperature=1.0, max_tokens=128, seed=number) for number in range(len(asked))
    ]
    told = writer.chat(conversations, params, use_tqdm=False)
stories = [one.outputs[0].text.strip() for one in told]
print(f"{len(stories)} stories, {len(set(stories))} different ones. The first:\n{stories[0]}")

# %% [markdown]
# ## The map
#
# `llm.embed` takes all texts at once. All vectors of a decoder lie in one narrow cone, so their
# mean is taken off first. The two directions in which they differ most are the axes.

# %%
embedder = LLM(
    "demo",
    runner="pooling",
    pooler_config={"pooling_type": "MEAN"},
    max_model_len=256,
    enforce_eager=True,
)


def embedded(texts: list[str]) -> np.ndarray:
    """A row for each text."""
    outputs = embedder.embed(texts, use_tqdm=False)
    return np.array([one.outputs.embedding for one in outputs], np.float32)


vectors = embedded(stories)
centred = vectors - vectors.mean(axis=0)
_, lengths, axes = np.linalg.svd(centred, full_matrices=False)
seen = (lengths[:2] ** 2).sum() / (lengths**2).sum()


def draw(places: np.ndarray, title: str) -> None:
    """A point for each story, coloured by its hero."""
    _, plot = plt.subplots(figsize=(7, 5))
    for index, hero in enumerate(HEROES):
        own = slice(index * EACH, (index + 1) * EACH)
        plot.scatter(*places[own].T, s=14, label=hero)
    plot.legend(fontsize=8)
    plot.set(title=title, xticks=[], yticks=[])


draw(centred @ axes[:2].T, f"Stories as the model sees them ({seen:.0%} of their differences)")

# %% [markdown]
# ## Finding stories about the same hero
#
# Every story of one half of the library looks for the nearest of the others in that half. A find
# is right if both have the same hero. The other half is kept for training.

# %%
heroes = np.repeat(np.arange(len(HEROES)), EACH)
is_kept = np.random.default_rng(0).permutation(len(stories)) % 2 == 0


def unit(rows: np.ndarray) -> np.ndarray:
    """Rows of length 1."""
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def found(rows: np.ndarray) -> float:
    """The share of right finds in the half that is not trained on."""
    others, asking = heroes[~is_kept], unit(rows[~is_kept])
    scores = asking @ asking.T
    np.fill_diagonal(scores, -np.inf)  # a story is no find of its own
    return float(np.mean(others[scores.argmax(axis=1)] == others))


print(f"as they are: {found(vectors):.0%}, by chance {1 / len(HEROES):.0%}")
print(f"without their mean: {found(centred):.0%}")

# %% [markdown]
# ## A matrix that knows what matters
#
# Most of what a vector says is not about the hero. Fisher's discriminants are the directions in
# which the heroes differ most, measured by how much stories of one hero differ among themselves.
# The model stays as it is: one equation is solved for a matrix that goes before the comparison.

# %%
given, theirs = centred[is_kept] / centred[is_kept].std(), heroes[is_kept]
means = np.stack([given[theirs == index].mean(axis=0) for index in range(len(HEROES))])
within = given - means[theirs]
spread = within.T @ within / len(within) + 0.01 * np.eye(within.shape[1])
learned = np.linalg.solve(spread, (means - means.mean(axis=0)).T)
print(f"with the matrix: {found(centred @ learned):.0%}")

# %%
moved = centred @ learned
_, lengths, axes = np.linalg.svd(moved - moved.mean(axis=0), full_matrices=False)
draw(moved @ axes[:2].T, "The same stories after the matrix")

# %% [markdown]
# ## Asking with words

# %%
question = "Once upon a time, there was a brave dragon."
asked_for = (embedded([question]) - vectors.mean(axis=0)) @ learned
scores = (unit(asked_for) @ unit(moved).T)[0]
for place in np.argsort(-scores)[:3]:
    print(f"{scores[place]:.2f}  {stories[place][:160]} ...\n")

# %%
embedder.shutdown()
