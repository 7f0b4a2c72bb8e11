"""Tokenizers out of GGUF files: equal to those that the vocabularies came from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import pytest
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from jengine.assembly.model_facts import model_tokenizer
from jengine.errors import CheckpointError
from jengine.text.tokenizer import Tokenizer as Own
from jengine.text.tokenizer import load_tokenizer
from jengine.text.vocabulary.splits import SPLITTINGS
from jengine.weights.generation_config import read_generation_config
from tests.weights.gguf.vocabularies import (
    CONTROL,
    OWN,
    SPECIAL,
    TEXTS,
    byte_pairs,
    merges_of,
    sentence_pairs,
    tokens_of,
    types_of,
    write_vocabulary,
)

SAMPLE = "He'LL say  don't 12345 ABCdef x==y()//\n\n \tEnd.  "
# The pieces of the sample, in which bytes are letters: Ġ is a space, Ċ a new line, ĉ a tab.
PIECES = {
    "gpt-2": "He|'|LL|Ġsay|Ġ|Ġdon|'t|Ġ12345|ĠABCdef|Ġx|==|y|()//|ĊĊĠ|ĉ|End|.|ĠĠ",
    "smollm": "He|'|LL|Ġsay|Ġ|Ġdon|'t|Ġ|1|2|3|4|5|ĠABCdef|Ġx|==|y|()//|ĊĊĠ|ĉ|End|.|ĠĠ",
    "llama-bpe": "He|'LL|Ġsay|Ġ|Ġdon|'t|Ġ|123|45|ĠABCdef|Ġx|==|y|()//ĊĊ|Ġ|ĉEnd|.|ĠĠ",
    "deepseek-v3": "He|'LL|Ġsay|Ġ|Ġdon|'t|Ġ|123|45|ĠABCdef|Ġx|==|y|()//ĊĊ|Ġ|ĉEnd|.|ĠĠ",
    "qwen2": "He|'LL|Ġsay|Ġ|Ġdon|'t|Ġ|1|2|3|4|5|ĠABCdef|Ġx|==|y|()//ĊĊ|Ġ|ĉEnd|.|ĠĠ",
    "tekken": "He|'LL|Ġsay|Ġ|Ġdon|'t|Ġ|1|2|3|4|5|ĠABCdef|Ġx|==|y|()//ĊĊ|Ġ|ĉEnd|.|ĠĠ",
    "gpt-4o": "He'LL|Ġsay|Ġ|Ġdon't|Ġ|123|45|ĠABCdef|Ġx|==|y|()//ĊĊ|Ġ|ĉEnd|.|ĠĠ",
    "seed-coder": "He|'LL|Ġsay|Ġ|Ġdon|'t|Ġ|1|2|3|4|5|ĠABCdef|Ġx|==|y|()//|ĊĊ|Ġ|ĉEnd|.|ĠĠ",
    "deepseek-llm": "He|'|LL|Ġsay|Ġ|Ġdon|'|t|Ġ|1|2|3|4|5|ĠABCdef|Ġx|==|y|()//|Ċ|Ċ|Ġ|ĉEnd|.|ĠĠ",
    "deepseek-coder": "He|'|LL|Ġsay|Ġ|Ġdon|'|t|Ġ|1|2|3|4|5|ĠABCdef|Ġx|==|y|()//|Ċ|Ċ|Ġ|ĉEnd|.|ĠĠ",
    "falcon": "He|'|LL|Ġsay|Ġ|Ġdon|'|t|Ġ|123|45|ĠABCdef|Ġx|==|y|()//|ĊĊĠ|ĉ|End|.|ĠĠ",
    "bloom": "He'LL|Ġsay|Ġ|Ġdon't|Ġ12345|ĠABCdef|Ġx==y|()|//|ĊĊĠĉ|End|.ĠĠ",
    "viking": "He'LL|Ġsay|Ġ|Ġdon't|Ġ|1|2|3|4|5|ĠABCdef|Ġx==y|()|//|ĊĊĠĉ|End|.ĠĠ",
}


@pytest.mark.parametrize("name", PIECES)
def test_words_are_split_as_the_name_says(name: str) -> None:
    found = SPLITTINGS[name].pre_tokenizer().pre_tokenize_str(SAMPLE)
    assert "|".join(piece for piece, _ in found) == PIECES[name]


@pytest.mark.parametrize("name", SPLITTINGS)
def test_nothing_is_lost_in_any_script(name: str) -> None:
    for text in TEXTS:
        found = SPLITTINGS[name].pre_tokenizer().pre_tokenize_str(text)
        assert decoders.ByteLevel().decode([piece for piece, _ in found]) == text


def differing(found: Own, original: Tokenizer | Any, texts: list[str]) -> list[str]:
    """Texts that two tokenizers read in different ways."""
    encode = original.encode if isinstance(original, Tokenizer) else None
    return [
        text
        for text in texts
        if found.encode(text, add_special_tokens=False)
        != (
            encode(text, add_special_tokens=False).ids
            if encode
            else original(text, add_special_tokens=False)["input_ids"]
        )
    ]


ORIGINALS = {"qwen2": "Qwen2Tokenizer", "gpt-2": "GPT2Tokenizer", "command-r": "CohereTokenizer"}


@pytest.mark.parametrize("name", ORIGINALS)
def test_byte_pairs_are_those_of_the_class_they_came_from(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    kind = getattr(transformers, ORIGINALS[name])
    made = byte_pairs(kind().backend_tokenizer.pre_tokenizer)
    tokens, merges = tokens_of(made), merges_of(made)
    file = write_vocabulary(tmp_path, "gpt2", tokens, merges=merges, pre=name)
    roles = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<unk>"}
    pairs = [tuple(one.split(" ")) for one in merges]
    original = kind(vocab=made.get_vocab(), merges=pairs, **roles)
    original.add_tokens([AddedToken(one, normalized=False) for one in OWN])
    found = model_tokenizer(file)
    texts = [*TEXTS, "a <tool>b</s> c", "<think>\n"]
    assert not differing(found, original.backend_tokenizer, texts)
    for text in texts:
        back = found.decode(found.encode(text, add_special_tokens=False), skip_special_tokens=False)
        assert back == (normalize("NFC", text) if SPLITTINGS[name].nfc else text)


def sentence_file(folder: Path, **given: Any) -> tuple[Path, list[str]]:
    tokens = sentence_pairs()
    scores = -np.arange(len(tokens), dtype=np.float32)
    return write_vocabulary(folder, "llama", tokens, scores=scores, **given), tokens


def published_llama(tokens: list[str]) -> Tokenizer:
    """As the tokenizer.json of Llama 2 has it."""
    ids = {token: number for number, token in enumerate(tokens)}
    normal = {one for one, kind in zip(tokens, types_of(tokens), strict=True) if kind in (1, 4)}
    pairs = [(t[:at], t[at:]) for t in tokens if t in normal for at in range(1, len(t))]
    merges = [pair for pair in pairs if pair[0] in ids and pair[1] in ids]
    merges.sort(key=lambda pair: (-ids["".join(pair)], len(pair[0]), len(pair[1])), reverse=True)
    made = Tokenizer(models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    made.add_special_tokens(SPECIAL)
    made.add_tokens([AddedToken(one, normalized=False) for one in OWN])
    return made


def test_sentence_pieces_are_those_of_the_published_form(tmp_path: Path) -> None:
    file, tokens = sentence_file(tmp_path)
    found = model_tokenizer(file)
    texts = [*TEXTS, " leading", "  more", "a<tool> b", "<s> x"]
    assert not differing(found, published_llama(tokens), texts)
    for text in TEXTS:
        assert found.decode(found.encode(text)) == text
    assert found.encode("x")[0] == tokens.index("<s>")


def test_runs_of_spaces_come_first_without_a_prefix(tmp_path: Path) -> None:
    """As in Gemma's files, whose runs of spaces are tokens of users with no score."""
    transformers = pytest.importorskip("transformers.integrations.gguf.gguf_tokenizer_mapping")
    runs = [" " * count for count in range(2, 9)]
    plain = [one for one in sentence_pairs()[5:] if set(one) != {"▁"}]
    tokens = [*SPECIAL, *OWN, *runs, *plain, "▁"]
    file = write_vocabulary(
        tmp_path, "llama", tokens, add_space_prefix=False, architecture="gemma",
        scores=np.array([-1000.0 if t in runs else -n for n, t in enumerate(tokens)], np.float32),
        token_type=types_of(tokens, **dict.fromkeys(runs, 4)), pre="default",
    )  # fmt: skip
    architecture, given, _ = transformers.get_gguf_tokenizer(str(file))
    original, _ = transformers.convert_gguf_tokenizer(architecture, given)
    found = model_tokenizer(file)
    assert not differing(found, original, TEXTS)
    for text in TEXTS:
        assert found.decode(found.encode(text)) == text


CONVERTED = ("llama-bpe", "tekken", "gpt-4o", "qwen35", "deepseek-r1-qwen", "gpt-2")


@pytest.mark.parametrize("name", CONVERTED)
def test_transformers_converts_to_the_same(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers.integrations.gguf.gguf_tokenizer_mapping")
    splitting = SPLITTINGS[name]
    made = byte_pairs(splitting.pre_tokenizer())
    file = write_vocabulary(tmp_path, "gpt2", tokens_of(made), merges=merges_of(made), pre=name)
    architecture, given, _ = transformers.get_gguf_tokenizer(str(file))
    original, _ = transformers.convert_gguf_tokenizer(architecture, given)
    composed = [text for text in TEXTS if not splitting.nfc or text.isascii()]
    assert not differing(model_tokenizer(file), original, composed)


def test_word_pieces_are_berts(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.train_from_iterator(TEXTS, trainers.WordPieceTrainer(
        vocab_size=700, special_tokens=marks, show_progress=False, limit_alphabet=200
    ))  # fmt: skip
    tokens = tokens_of(made)
    stored = [
        one if one in marks else one[2:] if one.startswith("##") else f"▁{one}" for one in tokens
    ]
    ids = {"unknown": 1, "seperator": 3, "padding": 0, "mask": 4, "bos": 2}
    file = write_vocabulary(
        tmp_path, "bert", stored, architecture="bert",
        token_type=types_of(stored, **dict.fromkeys(marks, CONTROL)),
        **{f"{role}_token_id": number for role, number in ids.items()},
    )  # fmt: skip
    original = transformers.BertTokenizer(vocab=made.get_vocab())
    found = model_tokenizer(file)
    for text in TEXTS:
        assert found.encode(text) == original(text)["input_ids"]
    pair = original("Hello, world", "two more")
    assert found.encode_pair("Hello, world", "two more") == (
        pair["input_ids"], pair["token_type_ids"],
    )  # fmt: skip


def test_unigrams_take_the_best_pieces(tmp_path: Path) -> None:
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.train_from_iterator(TEXTS * 2, trainers.UnigramTrainer(
        vocab_size=800, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>",
        show_progress=False,
    ))  # fmt: skip
    pairs = json.loads(made.to_str())["model"]["vocab"]
    tokens, scores = [one for one, _ in pairs], np.array([s for _, s in pairs], np.float32)
    file = write_vocabulary(
        tmp_path, "t5", tokens, scores=scores, remove_extra_whitespaces=False, add_space_prefix=True
    )
    found = model_tokenizer(file)
    assert not differing(found, made, [text for text in TEXTS if text])
    assert found.encode("Hello")[-1] == 2


def test_what_is_written_around_texts_and_what_ends_answers(tmp_path: Path) -> None:
    made = byte_pairs(SPLITTINGS["llama-bpe"].pre_tokenizer(), 400)
    tokens = [*tokens_of(made), "<|im_end|>", "<|return|>", "[PAD1]"]
    given = {"merges": merges_of(made), "pre": "llama-bpe"}
    kinds = {"<|im_end|>": CONTROL, "<|return|>": CONTROL, "[PAD1]": 5}
    given["token_type"] = types_of(tokens, **kinds)
    expected = {
        (): [1],
        (True, False): [1],
        (False, True): [2],
        (True, True): [1, 2],
        (False, False): [],
    }
    for number, (flags, around) in enumerate(expected.items()):
        names = dict(zip(("add_bos_token", "add_eos_token"), flags, strict=False))
        file = write_vocabulary(tmp_path / str(number), "gpt2", tokens, **given, **names)
        found = model_tokenizer(file)
        assert [one for one in found.encode("x") if one < 3] == around
    assert found.vocab_size == len(tokens) - 1  # without the unused token at the end
    assert read_generation_config(file)["eos_token_id"] == (2, len(tokens) - 3, len(tokens) - 2)
    special = {found.added_tokens[one] for one in found.special_ids}
    assert special == {*SPECIAL, "<|im_end|>", "<|return|>"}
    assert {*OWN} < {*found.added_tokens.values()}
    assert not {*found.encode_plain("</s><tool>")} & {2, tokens.index("<tool>")}


def test_a_saved_tokenizer_is_the_same(tmp_path: Path) -> None:
    file, _ = sentence_file(tmp_path, eos_token_id=2)
    found = model_tokenizer(file)
    found.hf.chat_template = "{{ messages[0].content }}"
    found.hf.save_pretrained(tmp_path / "saved")
    again = load_tokenizer(tmp_path / "saved")
    assert [again.encode(text) for text in TEXTS] == [found.encode(text) for text in TEXTS]
    assert (again.eos_token_id, again.hf.chat_template) == (2, found.hf.chat_template)
    assert again.special_ids == found.special_ids


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"pre": "klingon"}, r"split as 'klingon' \(tokenizer.ggml.pre\).* Give tokenizer=FOLDER"),
        ({"pre": None}, "split as None"),
        ({"model": "rwkv"}, r"of the kind 'rwkv' .*known are gpt2, llama"),
        ({"model": None}, "holds no vocabulary"),
        ({"merges": ["a b c", "ab"]}, "the merge 'ab' is no pair"),
        ({"merges": ["é é"]}, "its vocabulary makes no tokenizer"),
        ({"tokens": ["a", "b", "a"]}, "two tokens are 'a'"),
        ({"token_type": np.ones(1, np.int32)}, "token_type does not hold 3 numbers"),
        ({"add_bos_token": 1.5}, "add_bos_token is 1.5, expected true or false"),
        ({"bos_token_id": "x"}, "bos_token_id is 'x', expected the id of a token"),
    ],
)
def test_what_makes_no_tokenizer_is_named(given: Any, message: str, tmp_path: Path) -> None:
    plain = {"tokens": ["a", "b", "c"], "merges": [], "pre": "gpt-2", "token_type": None}
    settings = {**plain, "model": "gpt2", **given}
    file = write_vocabulary(tmp_path, settings.pop("model"), settings.pop("tokens"), **settings)
    with pytest.raises(CheckpointError, match=message):
        model_tokenizer(file)
