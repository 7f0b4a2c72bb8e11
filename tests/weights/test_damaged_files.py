"""Damaged and lying safetensors files give a CheckpointError or a correct load, nothing else."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jengine.errors import CheckpointError
from jengine.weights.safetensors_file import read_header
from jengine.weights.safetensors_io import load_model
from tests.models.tiny_models import write_tiny_native


def file_of(header: object, data: bytes = b"", *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(shape: list[Any], begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


EIGHT = bytes(8)
DAMAGED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "too few"),
    "short": (b"\1\0\0", "too few"),
    "header beyond the file": (file_of({}, length=1000), "header says"),
    "header of 2**63 bytes": (file_of({}, length=2**63), "header says"),
    "header of nothing": (file_of(b""), "header says"),
    "not JSON": (file_of(b"{'a': 1}"), "not JSON"),
    "not UTF-8": (file_of(b'{"\xff": 1}'), "not JSON"),
    "too deep": (file_of(b"[" * 100_000), "not JSON"),
    "huge number": (file_of(b'{"a": ' + b"9" * 5000 + b"}"), "not JSON"),
    "not an object": (file_of([1, 2]), "not a JSON object"),
    "name twice": (
        file_of(b'{"a": %s, "a": %s}' % ((json.dumps(entry([2], 0, 8)).encode(),) * 2), EIGHT),
        "'a' twice",
    ),
    "entry of another kind": (file_of({"a": 3}), "'a'.*expected dtype, shape"),
    "no offsets": (file_of({"a": {"dtype": "F32", "shape": []}}), "'a'.*expected dtype, shape"),
    "unknown type": (file_of({"a": entry([2], 0, 8, "F128")}, EIGHT), "'a'.*unknown type"),
    "type of another kind": (
        file_of({"a": {**entry([2], 0, 8), "dtype": ["F32"]}}, EIGHT), "unknown type"),
    "shape of another kind": (file_of({"a": entry([2.0], 0, 8)}, EIGHT), "'a'.*not a list"),
    "negative size": (file_of({"a": entry([-2], 0, 8)}, EIGHT), "'a'.*not a list of sizes"),
    "true as size": (file_of({"a": entry([True, 2], 0, 8)}, EIGHT), "'a'.*not a list of sizes"),
    "size of 2**63": (file_of({"a": entry([2**63], 0, 8)}, EIGHT), "'a'.*not a list of sizes"),
    "product that wraps to 2": (
        file_of({"a": entry([2**62 + 1, 2], 0, 8)}, EIGHT), "'a'.*does not take"),
    "many dimensions": (file_of({"a": entry([1] * 65, 0, 4)}, bytes(4)), "'a'.*not a list"),
    "offsets backwards": (file_of({"a": entry([2], 8, 0)}, EIGHT), "'a'.*not a range"),
    "negative offset": (file_of({"a": entry([2], -8, 0)}, EIGHT), "'a'.*not a range"),
    "offsets beyond the file": (file_of({"a": entry([2], 800, 808)}, EIGHT), "'a' leaves a gap"),
    "larger than the file": (file_of({"a": entry([4], 0, 16)}, EIGHT), "cut short"),
    "smaller than the file": (file_of({"a": entry([1], 0, 4)}, EIGHT), "followed by bytes"),
    "overlap": (
        file_of({"a": entry([2], 0, 8), "b": entry([1], 4, 8)}, EIGHT), "'b' overlaps"),
    "gap": (
        file_of({"a": entry([1], 0, 4), "b": entry([1], 8, 12)}, bytes(12)), "'b' leaves a gap"),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGED)
def test_damage_is_named(case: str, tmp_path: Path) -> None:
    content, expected = DAMAGED[case]
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=expected) as caught:
        read_header(file)
    assert "model.safetensors" in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_tensor_names_are_never_paths(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(file_of({"../../evil": entry([2], 0, 8)}, EIGHT))
    assert list(read_header(file)) == ["../../evil"]
    assert list(tmp_path.iterdir()) == [file]


def test_data_need_not_be_aligned(tmp_path: Path) -> None:
    values = np.array([1.5, -2.0], np.float32)
    for padding in range(4):
        header = json.dumps({"a": entry([2], 0, 8)}).encode() + b" " * padding
        file = tmp_path / "model.safetensors"
        file.write_bytes(file_of(header, values.tobytes()))
        np.testing.assert_array_equal(np.array(read_header(file)["a"].read()), values)


def test_a_file_cut_after_its_header_was_read(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(file_of({"a": entry([2], 0, 8)}, EIGHT))
    tensor = read_header(file)["a"]
    file.write_bytes(b"")
    with pytest.raises(CheckpointError, match="'a'"):
        tensor.read()
    file.unlink()
    with pytest.raises(CheckpointError, match="'a'"):
        tensor.read()


@pytest.fixture(scope="module")
def sound_folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    sizes = {"vocab_size": 4, "hidden_size": 4, "intermediate_size": 2, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1}
    folder = tmp_path_factory.mktemp("sound")
    write_tiny_native(folder, "llama", **sizes, **heads)
    return folder, (folder / "model.safetensors").read_bytes()


def load_or_refuse(folder: Path) -> None:
    try:
        model = load_model(folder)
    except CheckpointError:
        return
    assert np.asarray(model.embed.weight.get_value()).shape == (4, 4)


FUZZED = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@FUZZED
@given(
    flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), min_size=1, max_size=4)
)
def test_flipped_header_bytes(
    sound_folder: tuple[Path, bytes], flips: list[tuple[int, int]]
) -> None:
    folder, sound = sound_folder
    header_end = 8 + struct.unpack("<Q", sound[:8])[0]
    damaged = bytearray(sound)
    for position, mask in flips:
        damaged[position % header_end] ^= mask
    (folder / "model.safetensors").write_bytes(damaged)
    load_or_refuse(folder)


@FUZZED
@given(length=st.integers(0, 10**6), tail=st.binary(max_size=40))
def test_cut_and_lengthened_files(
    sound_folder: tuple[Path, bytes], length: int, tail: bytes
) -> None:
    folder, sound = sound_folder
    damaged = sound[: length % len(sound)] + tail
    (folder / "model.safetensors").write_bytes(damaged)
    if len(damaged) != len(sound):
        with pytest.raises(CheckpointError):
            load_model(folder)
    else:
        load_or_refuse(folder)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@FUZZED
@given(
    header=st.dictionaries(
        st.text(max_size=5),
        JSON_VALUES
        | st.fixed_dictionaries(
            {
                "dtype": st.sampled_from(["F32", "BF16", "I64", "F4", "X"]) | JSON_VALUES,
                "shape": st.lists(st.integers(-1, 2**64), max_size=3) | JSON_VALUES,
                "data_offsets": st.lists(st.integers(-1, 64), max_size=3) | JSON_VALUES,
            }
        ),
        max_size=3,
    ),
    data=st.binary(max_size=16),
)
def test_any_header(
    tmp_path_factory: pytest.TempPathFactory, header: dict[str, Any], data: bytes
) -> None:
    file = tmp_path_factory.getbasetemp() / "any.safetensors"
    file.write_bytes(file_of(header, data))
    try:
        tensors = read_header(file)
    except CheckpointError:
        return
    assert sum(tensor.size for tensor in tensors.values()) == len(data)


@FUZZED
@given(
    flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), min_size=1, max_size=3)
)
def test_flipped_config_bytes(
    sound_folder: tuple[Path, bytes], flips: list[tuple[int, int]]
) -> None:
    folder, sound = sound_folder
    (folder / "model.safetensors").write_bytes(sound)
    config = (folder / "config.json").read_bytes()
    damaged = bytearray(config)
    for position, mask in flips:
        damaged[position % len(config)] ^= mask
    try:
        (folder / "config.json").write_bytes(damaged)
        load_or_refuse(folder)
    finally:
        (folder / "config.json").write_bytes(config)
