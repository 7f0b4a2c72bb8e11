"""Pre-tokenization rules by the names in GGUF files. Data: normalizer, steps, and llama.cpp's
flags.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tokenizers import Regex, normalizers, pre_tokenizers

Step = Callable[[], Any]  # makes a pre-tokenizer

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = (
    rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35 = (
    rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
ANY = r"[^\r\n\p{L}\p{N}]?"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = rf"{ANY}{UPPER}*{LOWER}+|{ANY}{UPPER}+{LOWER}*|\p{{N}}{REST}"
GPT4O = (
    rf"{ANY}{UPPER}*{LOWER}+{CONTRACTIONS}?|{ANY}{UPPER}+{LOWER}*{CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}{REST}"
)
BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
SEED = (
    rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1}}"
    r"| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Alphabets with capitals: Latin, Greek, Cyrillic, Armenian, Georgian, Cherokee and their like.
CASED = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕ"
    "ἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ"
    "\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ\U00010400-\U0001044f"
    "\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)
HAN = "[一-龥ࠀ-一가-퟿]+"
BLOOM = " ?[^(\\s|[.,!?…。，、।۔،])]+"


def split(pattern: str) -> Step:
    """Isolate matches."""
    return lambda: pre_tokenizers.Split(Regex(pattern), "isolated")


def words() -> Any:
    """GPT-2's word pattern, in bytes."""
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def plain_bytes() -> Any:
    """Byte mapping without splitting."""
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def digits() -> Any:
    """Split digits individually."""
    return pre_tokenizers.Digits(individual_digits=True)


@dataclass(frozen=True)
class Splitting:
    """Pre-tokenizer steps, the last of which maps to bytes."""

    steps: tuple[Step, ...]
    nfc: bool = False  # NFC-normalise texts
    # Whether a word that is a token is taken whole, without merging.
    whole_words: bool = False
    adds_bos: bool = False  # default if the file does not say
    adds_sep: bool = False  # the same

    def normalizer(self) -> Any:
        return normalizers.NFC() if self.nfc else None

    def pre_tokenizer(self) -> Any:
        return pre_tokenizers.Sequence([step() for step in self.steps])


def _by(pattern: str) -> Splitting:
    return Splitting((split(pattern), plain_bytes))


_GPT2 = Splitting((words,))
_DIGITS = Splitting((digits, words))
_LLAMA3 = replace(_by(LLAMA3), whole_words=True, adds_bos=True)
_DEEPSEEK3 = Splitting(
    (split(r"\p{N}{1,3}"), split("[一-龥\u3040-ゟ゠-ヿ]+"), split(DEEPSEEK3), plain_bytes)
)
_KINDS: tuple[tuple[Splitting, str], ...] = (
    (_GPT2, "gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de gigachat a.x-4.0 mellum jais"
            " trillion granite-docling exaone4"),
    (replace(_GPT2, nfc=True), "olmo mpt modern-bert"),
    (replace(_GPT2, adds_sep=True, adds_bos=True), "jina-v1-en jina-v2-code roberta-bpe"),
    (_DIGITS, "smollm starcoder refact codeshell exaone minerva-7b mellum2"),
    (replace(_DIGITS, nfc=True), "command-r"),
    (_LLAMA3, "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano"),
    (_by(LLAMA3), "dbrx smaug-bpe chatglm-bpe glm4"),
    (replace(_by(QWEN2), nfc=True), "qwen2"),
    (_by(QWEN2), "deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2"),
    (replace(_by(QWEN35), nfc=True), "qwen35"),
    (replace(_by(TEKKEN), whole_words=True, adds_bos=True), "tekken"),
    (_by(GPT4O), "gpt-4o llama4 kanana2 talkie minimax-m2"),
    (_by(BAILING), "bailingmoe bailingmoe2 llada-moe"),
    (_by(SEED), "seed-coder"),
    (_DEEPSEEK3, "deepseek-v3 hunyuan-dense joyai-llm"),
    (
        Splitting((
            split(r"[\r\n]"), split(rf"\s?[{CASED}]+"),
            split("\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+"),
            split(r"\s+$"), split(HAN), digits, plain_bytes,
        )),
        "deepseek-llm",
    ),
    (
        Splitting((
            split(r"[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split(HAN), digits,
            plain_bytes,
        )),
        "deepseek-coder",
    ),
    (
        Splitting((
            lambda: pre_tokenizers.Punctuation("contiguous"), words,
            lambda: pre_tokenizers.Digits(individual_digits=False),
            split("[0-9][0-9][0-9]"),
        )),
        "falcon",
    ),
    (_by(BLOOM), "bloom poro-chat gpt3-finnish"),
    (Splitting((split(BLOOM), digits, plain_bytes)), "viking"),
)  # fmt: skip
SPLITTINGS = {name: splitting for splitting, names in _KINDS for name in names.split()}
