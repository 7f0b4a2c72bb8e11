"""Which folder a model's name means, and the settings that lie beside the weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from jengine.demo import eagle_path, model_path
from jengine.errors import CheckpointError
from jengine.text.tokenizer import load_tokenizer
from jengine.weights.folder import open_checkpoint, read_model_config
from jengine.weights.generation_config import read_generation_config, read_json
from jengine.weights.resolve import resolve_model


def test_a_model_is_a_local_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_model(tmp_path) == tmp_path
    assert resolve_model(str(tmp_path)) == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_model("~") == tmp_path
    assert resolve_model("demo") == model_path()
    assert resolve_model("demo-eagle") == eagle_path()


@pytest.mark.parametrize("name", ["", "./Llama-3.2-1B", "~nobody-here/x", "a\0b"])
def test_other_names_say_what_to_do(name: str) -> None:
    with pytest.raises(CheckpointError, match=r"Expected a folder with config\.json") as caught:
        resolve_model(name)
    assert repr(name) in str(caught.value)
    assert "'demo'" in str(caught.value)


def test_a_gguf_file_is_a_model_and_other_files_are_not(tmp_path: Path) -> None:
    for name in ("model.gguf", "model.bin"):
        (tmp_path / name).write_bytes(b"GGUF")
    assert resolve_model(tmp_path / "model.gguf") == tmp_path / "model.gguf"
    with pytest.raises(CheckpointError, match="is a file"):
        resolve_model(tmp_path / "model.bin")


def test_a_folder_of_gguf_files_is_its_one_model(tmp_path: Path) -> None:
    for name in ("x-Q4_K_M-00001-of-00002", "x-Q4_K_M-00002-of-00002", "mmproj-x-F16"):
        (tmp_path / f"{name}.gguf").write_bytes(b"GGUF")
    assert resolve_model(tmp_path) == tmp_path / "x-Q4_K_M-00001-of-00002.gguf"
    (tmp_path / "x-Q8_0.gguf").write_bytes(b"GGUF")
    both = r"holds 2 GGUF models. Give one: x-Q4_K_M-00001-of-00002.gguf \(0.00 GB\), x-Q8_0.gguf"
    with pytest.raises(CheckpointError, match=both):
        resolve_model(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(tmp_path) == tmp_path


def test_a_folder_of_gguf_files_is_called_one(tmp_path: Path) -> None:
    (tmp_path / "model-Q4_K_M.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match=r"holds GGUF files.*Give the .gguf file itself"):
        read_model_config(tmp_path)
    with pytest.raises(CheckpointError, match=r"only model-Q4_K_M\.gguf\. Give the .gguf"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("given", "meant"), [("lama-3", "llama-3"), ("demo-model", ""), ("dem", "demo")]
)
def test_a_misspelt_name_gets_a_suggestion(
    given: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("llama-3", "qwen"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    (tmp_path / "llama-4").mkdir()  # no model
    monkeypatch.chdir(tmp_path)
    names = [given] if given == "dem" else [given, str(tmp_path / given)]
    for name in names:
        with pytest.raises(CheckpointError) as caught:
            resolve_model(name)
        wanted = name.removesuffix(given) + meant
        assert (f"Did you mean {wanted!r}?" in str(caught.value)) is bool(meant)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_git_lfs_pointer_is_called_one(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "clone"
    shutil.copytree(model_path(), folder)
    (folder / name).write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 4360888\n"
    )
    read = {"config.json": read_model_config, "tokenizer.json": load_tokenizer}
    with pytest.raises(CheckpointError, match=rf"{name} is a Git LFS pointer.*git lfs pull"):
        read.get(name, open_checkpoint)(folder)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff", b"[" * 100_000, b"9" * 5000])
def test_damaged_json(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_json(tmp_path / "config.json")


def test_a_folder_without_config(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        read_json(tmp_path / "config.json")


def write_generation_config(folder: Path, **values: Any) -> None:
    (folder / "generation_config.json").write_text(json.dumps(values))


def test_generation_config(tmp_path: Path) -> None:
    assert read_generation_config(tmp_path) == {}
    write_generation_config(
        tmp_path,
        eos_token_id=[1, 2],
        temperature=1,
        top_p=0.9,
        top_k=20,
        min_p=None,
        repetition_penalty=1.05,
        max_new_tokens=9,
        transformers_version="5",
    )
    assert read_generation_config(tmp_path) == {
        "eos_token_id": (1, 2),
        "temperature": 1.0,
        "top_p": 0.9,
        "top_k": 20,
        "repetition_penalty": 1.05,
        "max_new_tokens": 9,
    }
    write_generation_config(tmp_path, eos_token_id=7)
    assert read_generation_config(tmp_path) == {"eos_token_id": (7,)}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("eos_token_id", "2"),
        ("eos_token_id", [1, -1]),
        ("temperature", "hot"),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_p", True),
        ("top_k", 2.5),
        ("top_k", -2),
        ("min_p", 2),
        ("repetition_penalty", 0),
        ("max_new_tokens", 0),
        ("max_new_tokens", [3]),
    ],
)
def test_wrong_generation_settings(key: str, value: Any, tmp_path: Path) -> None:
    write_generation_config(tmp_path, **{key: value})
    with pytest.raises(CheckpointError, match=rf"generation_config\.json: '{key}': given"):
        read_generation_config(tmp_path)
