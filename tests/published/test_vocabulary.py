"""The tokenizer that the file's vocabulary makes, against transformers' conversion of it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tokenizers import pre_tokenizers

from jengine.assembly.model_facts import model_tokenizer
from jengine.weights.generation_config import read_generation_config
from tests.published.prompts import PROMPTS
from tests.weights.gguf.vocabularies import TEXTS

pytestmark = pytest.mark.published


def test_it_reads_and_writes_texts_as_transformers_does(weights: Path) -> None:
    from transformers import AutoTokenizer

    other = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)
    # transformers does not know how "smollm" splits; this is what the model's tokenizer.json says.
    other.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    own = model_tokenizer(weights)
    letters = [*{letter for text in TEXTS for letter in text}]
    drawn = random.Random(1)
    mixed = ["".join(drawn.choices(letters, k=drawn.randrange(1, 60))) for _ in range(500)]
    marked = ["<|im_start|>user\nhi<|im_end|>\n", "a <|endoftext|> b", "<|im_start|><|im_start|>"]
    for text in [*TEXTS, *PROMPTS, *mixed, *marked]:
        ids = own.encode(text)
        assert ids == other(text)["input_ids"], text
        assert own.decode(ids, skip_special_tokens=False) == text
    messages = [{"role": "user", "content": "Hello"}]
    options = {"tokenize": False, "add_generation_prompt": True}
    assert own.hf.apply_chat_template(messages, **options) == other.apply_chat_template(
        messages, **options
    )
    assert own.eos_token_id == other.eos_token_id
    assert read_generation_config(weights)["eos_token_id"] == (other.eos_token_id,)
