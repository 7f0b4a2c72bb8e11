"""Tokenizers trained on a few texts, and the GGUF files that hold their vocabularies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from tests.weights.gguf.gguf_models import write_gguf

TEXTS = [
    "Hello, world! I'm sure they'LL say it's 12345.67 or 1,000,000; don't you?",
    "  two   spaces\tand a tab\n\nand lines \r\n  \n end   ",
    "def main(args: list[str]) -> int:\n    return {'x': args[0] ** 2}  # ok\n",
    "#include <vector>\nint main() { for (int i = 0; i != 10; ++i) { f(i); } }",
    "Der schnelle braune Fuchs springt über den faulen Hund. ÄÖÜ ß",
    "L'été à la plage, ça coûte 3,50 €. Œuvre, naïve, cafe\u0301",
    "El niño preguntó: ¿cuándo? ¡Mañana!",
    "Быстрая коричневая лиса прыгает через ленивую собаку",
    "Η γρήγορη καφέ αλεπού πηδάει πάνω από το τεμπέλικο σκυλί",
    "素早い茶色の狐がのろまな犬を飛び越える。カタカナ！",
    "敏捷的棕色狐狸跳过了懒狗，共有一百二十三只。",
    "날쌘 갈색 여우가 게으른 개를 뛰어넘는다",
    "الثعلب البني السريع يقفز فوق الكلب الكسول ٠١٢٣",
    "השועל החום המהיר קופץ מעל הכלב העצלן",
    "तेज भूरी लोमड़ी आलसी कुत्ते के ऊपर कूदती है १२३",
    "สุนัขจิ้งจอกสีน้ำตาลกระโดดข้ามสุนัขขี้เกียจ",
    "Nhanh như cắt, con cáo nâu nhảy qua con chó lười",
    "ქართული ენა, հայերեն, አማርኛ, தமிழ், తెలుగు, বাংলা",
    "🙂👩‍👩‍👧‍👦🇩🇪 ❤️ 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛 ½ ² Ⅷ ①",
    "ﬁne ﬂow ａｂｃ １２３ \u00a0nbsp\u3000wide\u200bzero\u202eover",
    "https://example.org/a?b=c&d=%20#e user@mail.test /usr/bin/env C:\\dir",
    "a" * 40 + " " * 70 + "\n" * 9 + "\t" * 5 + "=" * 33 + "....!!!???",
    "SHOUTING camelCase snake_case kebab-case PascalCaseXMLHttp v1.2.3-rc4",
    "$x^2 + y_1 \\le \\frac{a}{b}$ ± ∞ ≠ → ∑ √",
    "",
    " ",
    "\n",
    "x",
    "\u0301",
    "\x00\x01\x7f",
]
SPECIAL, OWN = ["<unk>", "<s>", "</s>"], ["<tool>", "<think>"]
# Types of tokens in GGUF files.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def byte_pairs(splitting: Any, size: int = 600) -> Tokenizer:
    """Trained byte pairs, split so."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = splitting
    made.train_from_iterator(TEXTS * 3, trainers.BpeTrainer(
        vocab_size=size, special_tokens=[*SPECIAL, *OWN], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    ))  # fmt: skip
    return made


def sentence_pairs(size: int = 700) -> list[str]:
    """The tokens of SentencePiece's byte pairs: bytes, and then the best first."""
    made = Tokenizer(models.BPE(byte_fallback=True))
    made.normalizer = normalizers.Replace(" ", "▁")
    bytes_ = [f"<0x{one:02X}>" for one in range(256)]
    texts = [text.replace("\u0301", "") for text in TEXTS[:20]]  # not every character is a token
    made.train_from_iterator(texts * 3, trainers.BpeTrainer(
        vocab_size=size + 300, special_tokens=[*SPECIAL, *OWN, *bytes_], show_progress=False,
        limit_alphabet=250, max_token_length=12,
    ))  # fmt: skip
    return tokens_of(made)


def tokens_of(made: Tokenizer) -> list[str]:
    """Its tokens by id."""
    ids = made.get_vocab()
    return sorted(ids, key=ids.__getitem__)


def merges_of(made: Tokenizer) -> list[str]:
    """The merges of byte pairs, as GGUF writes them."""
    return [" ".join(pair) for pair in json.loads(made.to_str())["model"]["merges"]]


def types_of(tokens: list[str], **others: int) -> np.ndarray:
    """The types of tokens, by their looks."""
    return np.array([_type(one, others) for one in tokens], np.int32)


def _type(token: str, others: dict[str, int]) -> int:
    if token in others:
        return others[token]
    if token == "<unk>":
        return UNKNOWN
    if token in OWN:
        return USER_DEFINED
    is_byte = len(token) == 6 and token.startswith("<0x") and token.endswith(">")
    return BYTE if is_byte else CONTROL if token in SPECIAL else NORMAL


def write_vocabulary(folder: Path, model: str, tokens: list[str], **given: Any) -> Path:
    """A GGUF file without tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    keys = {"tokens": tokens, "token_type": types_of(tokens), "model": model, **given}
    roles = {"bos": "<s>", "eos": "</s>", "unknown": "<unk>"}
    for role, token in roles.items():
        if token in tokens:
            keys.setdefault(f"{role}_token_id", tokens.index(token))
    architecture = keys.pop("architecture", "llama")
    metadata = {f"tokenizer.ggml.{key}": value for key, value in keys.items() if value is not None}
    write_gguf(folder / "model.gguf", {"general.architecture": architecture, **metadata}, {})
    return folder / "model.gguf"
