"""Loading is local and runs no foreign code; encoding refuses what is not text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models

from jengine.errors import CheckpointError, ConfigError, RequestError
from jengine.text.tokenizer import Tokenizer, load_tokenizer, wrap_tokenizer

TEXT = st.text(alphabet="ab 你好😀é", max_size=20)


@pytest.fixture
def folder(byte_level: Tokenizer, tmp_path: Path) -> Path:
    byte_level.hf.save_pretrained(tmp_path)
    return tmp_path


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_saved_tokenizer_loads(byte_level: Tokenizer, folder: Path) -> None:
    loaded = load_tokenizer(folder)
    ids = loaded.encode("hello 世界 <|im_end|>")
    assert ids == byte_level.encode("hello 世界 <|im_end|>")
    assert loaded.decode(ids, skip_special_tokens=False) == "hello 世界 <|im_end|>"
    assert loaded.vocab_size == len(byte_level.hf)
    assert loaded.eos_token_id == 2
    assert loaded.special_ids == {0, 1, 2}


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a local folder"):
        load_tokenizer(tmp_path / "organisation/model")


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(CheckpointError, match="has no tokenizer"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("auto_map", [{"AutoTokenizer": ["evil.T", None]}, ["evil.T", None]])
def test_a_tokenizer_with_its_own_code_is_refused(folder: Path, auto_map: object) -> None:
    (folder / "evil.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\nclass T: pass\n")
    edit_config(folder, auto_map=auto_map)
    with pytest.raises(CheckpointError, match="auto_map"):
        load_tokenizer(folder)
    assert not (folder / "ran").exists()


def test_code_named_by_the_model_config_is_not_run(folder: Path) -> None:
    (folder / "evil.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\nclass C: pass\n")
    config = {"model_type": "evil", "auto_map": {"AutoConfig": "evil.C", "AutoTokenizer": "evil.C"}}
    (folder / "config.json").write_text(json.dumps(config))
    assert load_tokenizer(folder).encode("hello")
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "config.json"])
@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_damaged_file_is_named(folder: Path, name: str, content: str) -> None:
    (folder / name).write_text(content)
    with pytest.raises(CheckpointError, match=name):
        load_tokenizer(folder)


def test_a_file_that_waits_for_a_writer_is_refused(folder: Path) -> None:
    (folder / "config.json").unlink(missing_ok=True)
    os.mkfifo(folder / "config.json")
    with pytest.raises(CheckpointError, match=r"config\.json is neither a file nor a folder"):
        load_tokenizer(folder)


def test_live_objects_are_wrapped_and_others_refused(byte_level: Tokenizer) -> None:
    assert wrap_tokenizer(byte_level) is byte_level
    assert wrap_tokenizer(byte_level.hf).hf is byte_level.hf
    with pytest.raises(ConfigError, match="PreTrainedTokenizerFast"):
        wrap_tokenizer(Backend(models.BPE()))


@pytest.mark.parametrize("text", ["", "\0", "a\0b", "x" * 100_000, "\ufeff\u202e", "<|im_end|>"])
def test_odd_prompts_come_back(byte_level: Tokenizer, text: str) -> None:
    assert byte_level.decode(byte_level.encode(text), skip_special_tokens=False) == text


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback", "pure_python"])
def test_what_is_not_text_is_refused(request: pytest.FixtureRequest, kind: str) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    with pytest.raises(RequestError, match="surrogate pair at character 2"):
        tokenizer.encode("ab\ud83d")
    with pytest.raises(RequestError, match="expected a string"):
        tokenizer.encode(b"ab")  # type: ignore[arg-type]


def test_long_prompts_are_refused_by_their_characters(byte_level: Tokenizer) -> None:
    assert byte_level.encode("好好好", max_chars=3)
    with pytest.raises(RequestError, match="4 characters, at most 3"):
        byte_level.encode("aaaa", max_chars=3)


def test_the_users_truncation_does_not_shorten_prompts(byte_level: Tokenizer) -> None:
    byte_level.hf("hello world", truncation=True, max_length=2)
    assert byte_level.decode(byte_level.encode("hello world")) == "hello world"


@settings(max_examples=40, deadline=None)
@given(text=TEXT)
@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback", "pure_python"])
def test_token_texts_make_up_the_text(request: pytest.FixtureRequest, kind: str, text: str) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    ids = tokenizer.encode(text)
    texts = [tokenizer.token_text(number, ids[:place]) for place, number in enumerate(ids)]
    assert "".join(texts) == tokenizer.decode(ids)


def test_token_text_shows_special_tokens_and_hides_half_characters(byte_level: Tokenizer) -> None:
    assert byte_level.token_text(1) == "<|im_end|>"
    assert byte_level.token_text(byte_level.encode("😀")[0]) == ""


def test_the_host_half_stays_light() -> None:
    code = (
        "import sys, jengine.text.transcript, jengine.text.transcript\n"
        "assert not {'jax', 'transformers', 'torch'} & sys.modules.keys()\n"
        "sys.modules['torch'] = None  # as if it were not installed\n"
        "import jengine.text.tokenizer, jengine.text.chat_template\n"
        "assert not {'jax', 'transformers'} & sys.modules.keys()\n"
        "from transformers import AutoTokenizer\n"  # which would like to have torch
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert (done.returncode, done.stderr) == (0, "")
