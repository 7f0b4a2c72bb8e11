"""The tokenizer keeps digits apart, loses nothing, and agrees with how training renders chats."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from examples.demo_model import corpus
from examples.demo_model import tokenizer as demo_tokenizer

TEXTS = ("What is 23 + 45?", "A fox met an owl.", '{"name": "Tom", "age": 3}')


@pytest.fixture(scope="module")
def small() -> Tokenizer:
    return demo_tokenizer.train(TEXTS * 3, vocabulary_size=300)


def test_digits_are_tokens_of_their_own(small: Tokenizer):
    assert small.encode("2345+6").tokens == ["2", "3", "4", "5", "+", "6"]


def test_any_text_comes_back(small: Tokenizer):
    text = "Größe 12 → “quotes”\n\n\ttabs, 日本 and  spaces "
    assert small.decode(small.encode(text).ids) == text


def test_training_is_reproducible(small: Tokenizer):
    assert demo_tokenizer.train(TEXTS * 3, vocabulary_size=300).to_str() == small.to_str()


def test_special_tokens_come_first(small: Tokenizer):
    ids = [small.token_to_id(token) for token in demo_tokenizer.SPECIAL_TOKENS]
    assert ids == [0, 1, 2]
    assert small.encode("<|im_end|>").ids == [2]


def test_saved_folder_loads_again(small: Tokenizer, tmp_path: Path):
    demo_tokenizer.save(small, tmp_path)
    assert demo_tokenizer.load(tmp_path).to_str() == small.to_str()
    assert (tmp_path / "chat_template.jinja").read_text() == demo_tokenizer.CHAT_TEMPLATE


def test_segments_tokenize_as_the_whole_does(small: Tokenizer):
    turns = (corpus.Turn("user", "Hi."), corpus.Turn("assistant", "A fox."))
    source = corpus.Document("sums", turns)
    parts = [segment.text for segment in corpus.render(source)]
    separate = [token for part in parts for token in small.encode(part).ids]
    assert separate == small.encode("".join(parts)).ids
