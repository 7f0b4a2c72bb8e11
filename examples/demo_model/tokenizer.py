"""The demo model's tokenizer: byte-level BPE with single digits, and its chat template.

In: training text. Out: a tokenizer, saved as a folder in Hugging Face format.
Must not know: the model, how tokens are batched.
"""

import argparse
import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from examples.demo_model import corpus, names

__all__ = ["load", "save", "train"]

VOCABULARY_SIZE = 2048
LONGEST_TEXT = 1024
SPECIAL_TOKENS = (corpus.END_OF_TEXT, corpus.TURN_START, corpus.TURN_END)

# Words take the space before them; every digit stands alone, so that sums line up.
WORDS = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"

CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}\n"
)


def train(texts: Iterable[str], vocabulary_size: int = VOCABULARY_SIZE) -> Tokenizer:
    """Learn a byte-level BPE from texts that are free of special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[AddedToken(token, special=True) for token in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def training_texts(count: int = 30_000, seed: int = 0) -> Iterator[str]:
    """What the tokenizer learns from: the contents of documents, without markup."""
    documents = corpus.documents(f"tokenizer {seed}", mix=corpus.MIXES[0][1])
    for source in itertools.islice(documents, count):
        if source.plain:
            yield "".join(segment.text for segment in source.plain)
        for turn in source.turns:
            yield turn.role
            yield turn.content
    # Words that only the held-out part uses deserve tokens as well.
    for animal in names.ANIMALS:
        yield from (f"The {animal}, {names.article(animal)}.",) * 50


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": LONGEST_TEXT,
        "eos_token": corpus.TURN_END,
        "pad_token": corpus.END_OF_TEXT,
        "bos_token": None,
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def load(folder: Path) -> Tokenizer:
    """Read back what `save` wrote."""
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def main() -> None:
    """Train the tokenizer on a fixed seed and save it."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, required=True)
    save(train(training_texts()), parser.parse_args().out)


if __name__ == "__main__":
    main()
