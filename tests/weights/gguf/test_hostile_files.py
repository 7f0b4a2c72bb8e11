"""GGUF files of strangers: cut off, or lying about sizes. A search over what may be wrong."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from jengine.assembly.model_facts import model_tokenizer
from jengine.errors import CheckpointError, JengineError
from jengine.weights.folder import open_checkpoint, read_model_config
from jengine.weights.generation_config import read_generation_config
from jengine.weights.gguf.blocks import plain_array
from jengine.weights.gguf.header import Texts, read_header
from tests.weights.gguf.architectures import write_architecture
from tests.weights.gguf.gguf_models import described, plain, text, write_gguf

VOCABULARY = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.pre": "default",
    "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "a", "b", "ab", "▁"],
    "tokenizer.ggml.scores": np.arange(7, dtype=np.float32),
    "tokenizer.ggml.token_type": np.array([2, 3, 3, 1, 1, 1, 1], np.int32),
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.ggml.add_bos_token": True,
    "tokenizer.chat_template": "{{ messages }}",
    "general.sampling.temp": 0.5,
    "general.sampling.top_k": 20,
}
EXTREMES = [0, 1, 7, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1]


SMALL = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 7,
         "num_attention_heads": 2, "num_key_value_heads": 2}  # fmt: skip
FAMILIES = ("mixtral", "gemma2", "phi3", "qwen2_moe", "gpt_oss", "deepseek_v3")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file of a tiny model with a vocabulary."""
    folder = tmp_path_factory.mktemp("gguf")
    file = write_architecture(folder, "mixtral", metadata=VOCABULARY, **SMALL).gguf
    use(file)
    return file.read_bytes()


class Parts(dict[str, tuple[dict[str, Any], dict[str, Any]]]):
    """Metadata and tensors by family, too long to be shown."""

    def __repr__(self) -> str:
        return "Parts()"


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    """Metadata and tensors of tiny models."""
    found = Parts()
    for family in FAMILIES:
        folder = tmp_path_factory.mktemp(family)
        file = write_architecture(folder, family, metadata=VOCABULARY).gguf
        header = read_header(file)
        metadata = {
            key: list(value) if isinstance(value, Texts) else value
            for key, value in header.metadata.items()
        }
        tensors = {
            name: plain("F32", plain_array(tensor)) for name, tensor in header.tensors.items()
        }
        found[family] = metadata, tensors
    return found


def use(file: Path) -> None:
    """Everything that is read of a file."""
    read_model_config(file)
    for tensor in open_checkpoint(file).values():
        tensor.read()
    read_generation_config(file)
    model_tokenizer(file).encode("ab ba")


# In the header, and anywhere.
PLACES = st.one_of(st.integers(0, 3000), st.integers(0, 2**20))
Change = tuple[str, int, int]
CHANGES: st.SearchStrategy[Change] = st.one_of(
    st.tuples(st.just("cut"), PLACES, st.just(0)),
    st.tuples(st.just("byte"), PLACES, st.integers(0, 255)),
    st.tuples(st.just("long"), PLACES, st.sampled_from(EXTREMES)),
    st.tuples(st.just("short"), PLACES, st.sampled_from(EXTREMES[:8])),
)


# Shrinking would read files for minutes.
PHASES = [one for one in Phase if one.name not in ("shrink", "explain")]
ODD: list[Any] = [
    "", "x", True, False, 0, 1, 2, 3, 7, 2**31, 2**32 - 1, 0.0, -1.0, 0.5, 1e30, float("nan"),
    float("inf"), [], ["a", ""], np.zeros(0, np.float32), np.ones(3, np.int32),
    np.array([1, 2], np.int32), np.full(7, -1, np.int32), np.array([True, False]),
    np.full(7, np.nan, np.float32),
]  # fmt: skip


@pytest.mark.slow
@settings(
    max_examples=200,
    deadline=None,
    phases=PHASES,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_odd_metadata_and_tensors_are_said(
    parts: Parts, data: st.DataObject, tmp_path: Path
) -> None:
    """Values of other types and sizes, keys and tensors left out, or exchanged."""
    metadata, tensors = (dict(one) for one in parts[data.draw(st.sampled_from(FAMILIES))])
    for _ in range(data.draw(st.integers(1, 3))):
        what = data.draw(st.sampled_from(("value", "value", "key", "tensor", "exchange")))
        key = data.draw(st.sampled_from(sorted(metadata)))
        name, other = (data.draw(st.sampled_from(sorted(tensors))) for _ in range(2))
        if what == "value":
            metadata[key] = data.draw(st.sampled_from(ODD))
        elif what == "key" and key != "general.architecture":
            del metadata[key]
        elif what == "tensor" and len(tensors) > 1:
            del tensors[name]
        else:
            tensors[name], tensors[other] = tensors[other], tensors[name]
    file = tmp_path / "model.gguf"
    write_gguf(file, metadata, tensors)
    check(file)


def check(file: Path) -> None:
    """What is wrong with a file is said, and costs little memory."""
    tracemalloc.start()
    try:
        use(file)
    except JengineError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 64 * 2**20


def changed(data: bytes, changes: list[Change]) -> bytes:
    found = bytearray(data)
    for kind, at, value in changes:
        at %= max(len(found), 1)
        if kind == "cut":
            del found[at:]
        else:
            size = {"byte": 1, "short": 4, "long": 8}[kind]
            found[at : at + size] = value.to_bytes(size, "little")
    return bytes(found)


@settings(
    max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(changes=st.lists(CHANGES, min_size=1, max_size=3))
def test_whatever_is_wrong_is_said(whole: bytes, changes: list[Change], tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(changed(whole, changes))
    check(file)


def head(tensors: int, values: int) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, values)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (head(2**60, 0), "bytes are missing at its end"),
        (head(0, 2**60), "bytes are missing at its end"),
        (head(0, 1) + text("a") + struct.pack("<IIQ", 9, 8, 2**61), "is longer than the file"),
        (head(0, 1) + text("a") + struct.pack("<IIQ", 9, 6, 2**61), "bytes are missing"),
        (head(0, 1) + struct.pack("<Q", 2**62) + b"a", "bytes are missing"),
        (head(0, 1) + text("a") + struct.pack("<IIQIQIQ", 9, 9, 1, 9, 1, 9, 1), "type 9"),
        (head(0, 1) + text("a") + struct.pack("<I", 99), "metadata of type 99"),
        (head(0, 2) + (text("a") + described(1)) * 2, "it says 'a' twice"),
        (head(0, 1) + text("general.alignment") + described(24), "alignment is 24"),
        (head(0, 1) + text("general.type") + described("adapter"), "general.type is 'adapter'"),
        (head(1, 0) + text("a") + struct.pack("<I", 9), "has 9 dimensions"),
        (head(1, 0) + text("a") + struct.pack("<IQIQ", 1, 2**62, 0, 0), "after the end"),
        (head(1, 0) + text("a") + struct.pack("<IQIQ", 1, 1, 0, 2**63), "after the end"),
        (b"", "cannot be read"),
    ],
)
def test_lies_are_named(data: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match=message):
        read_header(file)


def test_tensors_that_share_bytes_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    write_gguf(file, {}, {name: plain("F32", np.zeros(16)) for name in ("a", "b")})
    data = bytearray(file.read_bytes())
    at = data.index(text("b")) + len(text("b")) + 4 + 8 + 4
    data[at : at + 8] = struct.pack("<Q", 32)
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match="'a' and 'b' share bytes"):
        read_header(file)
