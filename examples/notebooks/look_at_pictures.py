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
# # A model that looks at pictures, from nothing
#
# A vision-language model of half a million parameters learns here, on the CPU, to say what color
# and what shape it sees. It is a LLaVA in small: a tower cuts a picture into patches and makes an
# embedding of each, and these stand in the prompt like words. It is trained with optax as the
# engine's own module, saved as a folder that transformers would load too, and then asked.
#
# How to open this file as a notebook: see `first_look.py`.

# %%
import json
import os
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx
from PIL import Image, ImageDraw
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from jengine import (
    LLM,
    PictureBatch,
    SamplingParams,
    from_config,
    picture_batch,
    save_model,
)

# %% [markdown]
# ## Pictures, questions and answers

# %%
COLORS = {
    "red": (220, 40, 40),
    "green": (40, 180, 60),
    "blue": (40, 70, 220),
    "yellow": (235, 210, 40),
    "white": (245, 245, 245),
}
SHAPES = ("circle", "square", "triangle")
SIDE, PATCH = 32, 8
rng = np.random.default_rng(0)


def picture(color: str, shape: str) -> Image.Image:
    """A shape of one color, somewhere on a dark ground."""
    ground = tuple(rng.integers(0, 70, 3).tolist())
    image = Image.new("RGB", (SIDE, SIDE), ground)
    size = int(rng.integers(19, 27))
    left, top = rng.integers(1, SIDE - size, 2).tolist()
    box = (left, top, left + size, top + size)
    draw = ImageDraw.Draw(image)
    if shape == "circle":
        draw.ellipse(box, fill=COLORS[color])
    elif shape == "square":
        draw.rectangle(box, fill=COLORS[color])
    else:
        middle = left + size // 2
        corners = [(middle, top), (box[0], box[3]), (box[2], box[3])]
        draw.polygon(corners, fill=COLORS[color])
    return image


QUESTIONS = ("what color is it ?", "what shape is it ?", "what do you see ?")


def answer(question: str, color: str, shape: str) -> str:
    """The right answer."""
    return {QUESTIONS[0]: color, QUESTIONS[1]: shape}.get(question, f"a {color} {shape}")


drawn = [(color, shape) for shape in SHAPES for color in COLORS]
figure, axes = plt.subplots(3, 5, figsize=(6, 4))
for place, pair in zip(axes.flat, drawn, strict=True):
    place.imshow(picture(*pair))
    place.set_axis_off()
plt.show()

# %% [markdown]
# ## A tokenizer of words, and the model
#
# `config.json` is that of any LLaVA: two parts, a tower and a language model.

# %%
words = sorted({*" ".join(QUESTIONS).split(), *COLORS, *SHAPES, "a"})
vocabulary = {word: n for n, word in enumerate(["<pad>", "<s>", "</s>", "<image>", *words])}
backend = Tokenizer(models.WordLevel(vocabulary, "<pad>"))
backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
TEMPLATE = (
    "{% for message in messages %}{% for part in message.content %}"
    "{{ '<image> ' if part.type == 'image' else part.text }}{% endfor %}{% endfor %}"
)
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=backend,
    pad_token="<pad>",
    bos_token="<s>",
    eos_token="</s>",
    additional_special_tokens=["<image>"],
    chat_template=TEMPLATE,
)
CONFIG = {
    "architectures": ["LlavaForConditionalGeneration"],
    "model_type": "llava",
    "image_token_index": vocabulary["<image>"],
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "text_config": {
        "model_type": "llama",
        "vocab_size": len(vocabulary),
        "hidden_size": 96,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 128,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "initializer_range": 0.05,
    },
    "vision_config": {
        "model_type": "clip_vision_model",
        "hidden_size": 96,
        "intermediate_size": 192,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "image_size": SIDE,
        "patch_size": PATCH,
        "initializer_range": 0.05,
    },
    "vision_feature_layer": -1,
}
PICTURES = {
    "image_processor_type": "CLIPImageProcessor",
    "size": {"shortest_edge": SIDE},
    "crop_size": {"height": SIDE, "width": SIDE},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.25, 0.25, 0.25],
}
model = from_config(CONFIG, rngs=nnx.Rngs(0))
sizes = [leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))]
print(f"{sum(sizes):,} parameters")

# %% [markdown]
# ## Training
#
# The engine's own preprocessing cuts the pictures, and the engine's own module is trained: a batch
# of pictures goes through the tower, its embeddings take their places among the words, and the
# answers' tokens count. It ends when 995 of 1000 are right, which takes about two minutes on two
# cores.

# %%
ROWS, STEPS, ENOUGH = 48, int(os.environ.get("JENGINE_STEPS", "600")), 0.995


def batch() -> tuple[PictureBatch, np.ndarray]:
    """Questions, answers and pictures, and which tokens are answers."""
    prompts, told = [], []
    for _ in range(ROWS):
        color, shape = drawn[rng.integers(len(drawn))]
        question = QUESTIONS[rng.integers(3)]
        asked = tokenizer.encode(f"<image> {question}")
        told.append([*tokenizer.encode(answer(question, color, shape)), vocabulary["</s>"]])
        prompts.append(([*asked, *told[-1]], [picture(color, shape)]))
    made = picture_batch(model, prompts, settings=PICTURES)
    last = made.lengths[:, None]
    begin = last - np.array([[len(one)] for one in told])
    places = np.arange(made.tokens.shape[1])[None, :]
    return made, (begin <= places) & (places < last)


@nnx.jit
def train(
    model: nnx.Module, optimizer: nnx.Optimizer, batch: PictureBatch, counts: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """One step; returns the loss and the share of right tokens."""

    def loss(model: nnx.Module) -> tuple[jax.Array, jax.Array]:
        logits = model.score(batch.tokens[:, :-1], batch.pictures)
        wanted = batch.tokens[:, 1:]
        found = optax.softmax_cross_entropy_with_integer_labels(logits, wanted)
        weight = counts[:, 1:] / jnp.sum(counts)
        right = jnp.sum((jnp.argmax(logits, -1) == wanted) * weight)
        return jnp.sum(found * weight), right

    (value, right), gradients = nnx.value_and_grad(loss, has_aux=True)(model)
    optimizer.update(model, gradients)
    return value, right


schedule = optax.warmup_cosine_decay_schedule(0.0, 2e-3, min(50, STEPS // 2), STEPS)
chain = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=0.01))
optimizer = nnx.Optimizer(model, chain, wrt=nnx.Param)
history, began = [], time.perf_counter()
for step in range(STEPS):
    value, right = train(model, optimizer, *batch())
    history.append(float(right))
    share = np.mean(history[-50:])
    if step % 100 == 99:
        print(f"step {step + 1}: {share:.1%} of the words, {time.perf_counter() - began:.0f} s")
    if step >= 50 and share > ENOUGH:
        break

# %% [markdown]
# ## A folder, an engine, a question

# %%
temporary = tempfile.TemporaryDirectory()
folder = Path(temporary.name)
save_model(model, folder, tokenizer=tokenizer)
(folder / "preprocessor_config.json").write_text(json.dumps(PICTURES))
llm = LLM(folder, max_num_seqs=16, max_model_len=64, enforce_eager=True)
greedy = SamplingParams(temperature=0, max_tokens=6)


def asked(question: str, image: Image.Image) -> list[dict]:
    """A chat about a picture."""
    parts = [{"type": "image_pil", "image_pil": image}, {"type": "text", "text": question}]
    return [{"role": "user", "content": parts}]


tests = [(*pair, question) for pair in drawn for question in QUESTIONS]
shown = [picture(color, shape) for color, shape, _ in tests]
chats = [asked(question, image) for (*_, question), image in zip(tests, shown, strict=True)]
outputs = [one.outputs[0].text.strip() for one in llm.chat(chats, greedy, use_tqdm=False)]
figure, axes = plt.subplots(3, 5, figsize=(10, 7), layout="constrained")
for index, place in enumerate(axes.flat):
    number = 3 * index + index % 3  # another question for each
    place.imshow(shown[number])
    place.set_title(f"{tests[number][2]}\n{outputs[number]}", fontsize=8)
    place.set_axis_off()
plt.show()
wanted = [answer(question, color, shape) for color, shape, question in tests]
right = np.mean([ours == theirs for ours, theirs in zip(outputs, wanted, strict=True)])
print(f"{right:.0%} of {len(tests)} answers are right")
assert STEPS < 600 or right > 0.9
llm.shutdown()
