"""Writes a trained model as a folder in Hugging Face format, model card included.

In: a Trainer and a folder. Out: weights in bfloat16, tokenizer, generation defaults, README.md.
Must not know: how it was trained, beyond what the card tells.
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp

from examples.demo_model import tokenizer as demo_tokenizer
from examples.demo_model.trainer import Trainer
from jengine.weights.safetensors_io import save_pretrained

__all__ = ["export"]

GENERATION_DEFAULTS = {
    "bos_token_id": None,
    "eos_token_id": [2, 0],
    "pad_token_id": 0,
    "do_sample": True,
    "temperature": 0.5,
    "top_p": 0.9,
    "max_new_tokens": 256,
}

CARD = """\
---
license: apache-2.0
language: en
library_name: jengine
pipeline_tag: text-generation
---

# jengine's demo model ({size})

A tiny Qwen3 model ({parameters:,} parameters, bfloat16) that ships inside jengine, so that every
example runs at once and without a network. It can do four things, in English, and nothing else:

- tell short stories ("Tell me a story about a fox.", or plain text after "Once upon a time"),
- add numbers of up to two digits, and subtract a smaller one from a larger one, in digits ("What
  is 23 + 45?") and in words ("What is twenty-three plus forty-five?"),
- write small JSON objects ("Give me a JSON object for a cat named Tom who is 3 years old."),
- say what it is, and decline most of the rest.

It knows nothing about the world. It is for trying and testing software, not for answers.

## Figures

Greedy decoding. The prompts are held out, except for sums with a one-digit number, which are all
in training (there are only a hundred pairs): pairs of two-digit numbers (one pair in ten, with its
mirror image, in digits and words alike), combinations of JSON values, and story heroes that
training never showed. `python -m examples.demo_model.evaluate` measures them again;
`--write-card` updates this table.

<!-- figures -->
<!-- end of figures -->

## How it was made

- Text: made by `examples/demo_model/corpus.py` from a seed; no text by others is in it.
- Tokenizer: byte-level BPE, {vocabulary:,} entries, every digit a token of its own, ChatML turns.
- Shape: {layers} layers, hidden size {hidden}, {heads} heads of {head_dim}, {kv_heads} key-value
  heads, MLP {inner}, tied embeddings, {positions:,} positions.
- Training: {steps:,} steps of {tokens_per_step:,} tokens ({tokens:.1f} million) on CPU cores,
  AdamW, the last {refresher:,} of them a refresher at a lower learning rate; rows of at most 512
  tokens, so that longer conversations are untrained.

`python -m examples.demo_model.train --out DIR --size {size} {flags}` trains one like it.
"""


def export(trainer: Trainer, folder: Path) -> None:
    """Write everything that `jengine.demo.model_path()` holds."""
    parameters = trainer.state["parameters"]
    rounded = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), parameters)
    save_pretrained(trainer.model(rounded), folder)
    demo_tokenizer.save(trainer.tokenizer, folder)
    (folder / "generation_config.json").write_text(json.dumps(GENERATION_DEFAULTS, indent=2) + "\n")
    (folder / "README.md").write_text(card(trainer))


def card(trainer: Trainer) -> str:
    """The model card, its figures not yet measured."""
    plan, config = trainer.plan, trainer.config
    return CARD.format(
        size=plan.size,
        parameters=trainer.parameter_count,
        vocabulary=config["vocab_size"],
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        heads=config["num_attention_heads"],
        head_dim=config["head_dim"],
        kv_heads=config["num_key_value_heads"],
        inner=config["intermediate_size"],
        positions=config["max_position_embeddings"],
        steps=trainer.step,
        refresher=plan.refresher,
        flags=f"--steps {plan.steps} --refresher {plan.refresher}" + trainer.began_with,
        tokens_per_step=plan.tokens_per_step,
        tokens=trainer.step * plan.tokens_per_step / 1e6,
    )
