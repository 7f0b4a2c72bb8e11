"""Synthesises a tokenizer for random-weight models: byte tokens, and generated words.

In: a vocabulary's size. Out: tokenizer.json and tokenizer_config.json, which transformers and vLLM
read too. Texts cost what they cost with a byte-level BPE of this size.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SPECIAL = ("<unk>", "<s>", "</s>")
CONSONANTS, VOWELS = "bcdfghjklmnprstvwz", "aeiou"
CHAT_TEMPLATE = (
    "{% for message in messages %}<s> {{ message['role'] }} {{ message['content'] }}</s>"
    "{% endfor %}{% if add_generation_prompt %}<s> assistant{% endif %}"
)


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    """Write the tokenizer beside a model's weights."""
    names = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    names += itertools.islice(words(), max(vocab_size - len(names), 0))
    vocabulary = {name: number for number, name in enumerate(names[:vocab_size])}
    # Words are found whole; what is none is spelt in bytes.
    tokenizer = Tokenizer(models.BPE(vocabulary, [], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([name for name in SPECIAL if name in vocabulary])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "chat_template": CHAT_TEMPLATE,
    }
    text = json.dumps(settings, indent=1) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


def words() -> itertools.chain[str]:
    """Generated words of two syllables, then three, and so on, each with a leading space."""
    syllables = ["".join(pair) for pair in itertools.product(CONSONANTS, VOWELS)]
    return itertools.chain.from_iterable(
        ("Ġ" + "".join(word) for word in itertools.product(syllables, repeat=count))
        for count in itertools.count(2)
    )
