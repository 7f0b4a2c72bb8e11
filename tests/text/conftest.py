"""Small tokenizers of each kind, built in memory: byte-level BPE, byte fallback, pure Python."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, PythonBackend

from jengine.text.tokenizer import Tokenizer

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if enable_thinking %}<think>{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CORPUS = ["hello world, the quick brown fox jumps over the lazy dog. Hello stop END 你好 世界"] * 3
BYTE_LEVEL_SPECIALS = ["<|im_start|>", "<|im_end|>", "<|eos|>"]


def build_byte_level() -> PreTrainedTokenizerFast:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=BYTE_LEVEL_SPECIALS,
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|eos|>", chat_template=CHAT_TEMPLATE
    )


def build_byte_fallback() -> PreTrainedTokenizerFast:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "a", "b", "c", "d", "▁a", "▁b", "ab", "▁ab", "界"]
    merges = [("▁", "a"), ("▁", "b"), ("a", "b"), ("▁a", "b")]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    backend = Backend(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


class Utf8Tokenizer(PythonBackend):
    """One token a byte, no Rust behind it."""

    def __init__(self, **options: object) -> None:
        super().__init__(eos_token="<eos>", **options)

    @property
    def vocab_size(self) -> int:
        return 256

    def get_vocab(self) -> dict[str, int]:
        return {chr(byte): byte for byte in range(256)} | self.added_tokens_encoder

    def _tokenize(self, text: str, **options: object) -> list[str]:
        return [chr(byte) for byte in text.encode()]

    def _convert_token_to_id(self, token: str) -> int:
        return ord(token)

    def _convert_id_to_token(self, index: int) -> str:
        return chr(index)

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return b"".join(
            token.encode() if len(token) > 1 else bytes([ord(token)]) for token in tokens
        ).decode(errors="replace")


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    return Tokenizer(build_byte_level())


@pytest.fixture(scope="session")
def byte_fallback() -> Tokenizer:
    return Tokenizer(build_byte_fallback())


@pytest.fixture(scope="session")
def pure_python() -> Tokenizer:
    return Tokenizer(Utf8Tokenizer())
