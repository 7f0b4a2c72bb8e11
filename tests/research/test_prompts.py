"""Prompts: built in, from files, as text or ids, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from jengine.errors import ConfigError
from jengine.research.prompts import built_in, read_prompts, tokenized


def encode(text: str) -> list[int]:
    return list(text.encode())


def test_built_in_prompts_with_and_without_a_tokenizer() -> None:
    texts = built_in(encode, 256)
    assert len(texts) >= 4
    ids = built_in(None, 97)
    assert [len(one) for one in ids] == sorted({len(one) for one in ids})
    assert all(0 <= token < 97 for one in ids for token in one)
    assert ids == built_in(None, 97)


def test_lines_of_a_text_file(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text('Hello there\n\n  \n{"prompt": "as it is"}\n')
    assert read_prompts(file) == ["Hello there", '{"prompt": "as it is"}']


def test_lines_of_json(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('"text"\n[1, 2]\n{"prompt": "p"}\n{"prompt_token_ids": [3], "prompt": "p"}\n')
    assert read_prompts(file) == ["text", [1, 2], "p", [3]]


@pytest.mark.parametrize("line", ["{", "3", "[1, true]", '{"text": "x"}', "[1.5]", "null"])
def test_lines_that_are_no_prompt(tmp_path: Path, line: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(f'"good"\n{line}\n')
    with pytest.raises(ConfigError, match="line 2"):
        read_prompts(file)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_prompts(tmp_path / "none.txt")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_prompts(tmp_path / "binary.txt")
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(ConfigError, match="holds no prompt"):
        read_prompts(tmp_path / "empty.txt")


def test_texts_and_ids_become_ids() -> None:
    assert tokenized(["ab", [3, 4], np.array([5])], encode, 256, 10) == [[97, 98], [3, 4], [5]]


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "expected token ids from 0 to 96, at least one"),
        ("", "at least one"),
        ([97], "given \\[97\\]"),
        ([-1], "given \\[-1\\]"),
        ([1] * 11, "has 11 tokens; with the continuation at most 10 fit"),
        ([1.5], "expected a text or token ids"),
        ({"prompt": "x"}, "expected a text or token ids"),
    ],
)
def test_prompts_that_are_refused(prompt: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tokenized([[1], prompt], encode, 97, 10)  # type: ignore[list-item]


def test_text_without_a_tokenizer() -> None:
    with pytest.raises(ConfigError, match="no tokenizer, so prompts must be token ids"):
        tokenized(["text"], None, 97, 10)


def test_no_prompts() -> None:
    with pytest.raises(ConfigError, match="no prompts"):
        tokenized([], encode, 97, 10)
