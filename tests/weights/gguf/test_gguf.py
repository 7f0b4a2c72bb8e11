"""GGUF files: equal to the plain checkpoints that they stand for, and what is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jengine
from jengine import SamplingParams
from jengine.errors import CheckpointError
from jengine.models.parameter import named_parameters
from jengine.weights.folder import read_model_config
from jengine.weights.gguf.blocks import FORMATS
from jengine.weights.gguf.header import TYPES, PackedType
from jengine.weights.prepared import parameter_count
from jengine.weights.safetensors_io import load_model
from tests.marks import slow
from tests.models.plain_logits import plain_logits
from tests.weights.gguf.gguf_models import Choose, write_gguf, write_gguf_model
from tests.weights.test_quantized import ENGINE, TOKENS


def always(kind: str) -> Choose:
    return lambda name: kind


def mixed(name: str) -> str:
    """As in Q4_K_M: values and every second matrix in six bits, the head in eight."""
    if name.endswith(("v_proj.weight", "1.mlp.down_proj.weight")):
        return "Q6_K"
    return "Q8_0" if name == "lm_head.weight" else "Q4_K"


def half_of_it(name: str) -> str:
    """Queries and keys are multiplied as one with values, which are plain."""
    return "F16" if name.endswith(("v_proj.weight", "embed_tokens.weight")) else "Q8_0"


CASES: dict[str, tuple[str, Choose]] = {
    "Q8_0": ("llama", always("Q8_0")),
    "Q4_K_M": ("llama", mixed),
    "F16": ("qwen2", always("F16")),
    "mixed": ("qwen3", half_of_it),
    "BF16": ("qwen3", always("BF16")),
}


@pytest.mark.parametrize("case", ["Q4_K_M", "mixed", "BF16", *slow("Q8_0", "F16")])
def test_logits_are_those_of_the_plain_checkpoint(case: str, tmp_path: Path) -> None:
    files = write_gguf_model(tmp_path, *CASES[case])
    model = load_model(files.gguf, dtype="float32")
    own, other = model.config, read_model_config(files.folder)
    same = {"dtype": other.dtype, "initializer_range": other.initializer_range}
    assert dataclasses.replace(own, quantization=None, **same) == other
    expected = plain_logits(load_model(files.folder), TOKENS)
    np.testing.assert_allclose(plain_logits(model, TOKENS), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["Q4_K", *slow("Q6_K", "Q8_0")])
def test_a_tied_table_stays_codes(kind: str, tmp_path: Path) -> None:
    files = write_gguf_model(tmp_path, "llama", always(kind), tie_word_embeddings=True)
    model = load_model(files.gguf, dtype="float32")
    declared = dict(named_parameters(model))
    assert declared["embed.weight"].dtype == (jnp.uint8 if kind == "Q4_K" else jnp.int8)
    expected = plain_logits(load_model(files.folder), TOKENS)
    np.testing.assert_allclose(plain_logits(model, TOKENS), expected, rtol=1e-4, atol=1e-4)


def test_blocks_stay_codes_where_all_parts_of_a_matrix_have_them(tmp_path: Path) -> None:
    file = write_gguf_model(tmp_path / "half", "qwen3", half_of_it).gguf
    declared = dict(named_parameters(load_model(file)))
    assert declared["layers.0.mlp.down.weight"].dtype == jnp.int8
    assert declared["layers.0.mlp.down.scale"].shape == (8, 256)
    assert declared["layers.0.attention.qkv.weight"].dtype == jnp.bfloat16
    assert declared["head.weight"].dtype == jnp.int8
    file = write_gguf_model(tmp_path / "mixed", "llama", mixed).gguf
    declared = dict(named_parameters(load_model(file)))
    assert declared["layers.0.mlp.gate_up.weight"].dtype == jnp.uint8  # pairs of four bits
    assert declared["layers.0.mlp.gate_up.least_unit"].dtype == jnp.float16
    assert declared["head.weight"].dtype == jnp.int8
    # Queries and keys of four bits beside values of six, which share a scale in groups of 16.
    assert declared["layers.0.attention.qkv.weight"].dtype == jnp.int8
    assert declared["layers.0.attention.qkv.least"].shape[0] == 256 // 16


def test_parameters_are_counted_whatever_their_form(tmp_path: Path) -> None:
    files = write_gguf_model(tmp_path, "llama", mixed)
    packed, plain = (parameter_count(load_model(one)) for one in files)
    assert packed == plain


@pytest.mark.slow
@pytest.mark.parametrize(
    ("choose", "tied"),
    [(always("Q8_0"), True), (always("Q8_0"), False), (mixed, True), (always("Q4_K"), False)],
)
def test_an_engine_answers_and_saves(choose: Choose, tied: bool, tmp_path: Path) -> None:
    files = write_gguf_model(tmp_path, "llama", choose, tie_word_embeddings=tied)
    greedy = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    answers = []
    for model in files:
        with jengine.LLM(model, dtype="float32", **ENGINE) as llm:
            [made] = llm.generate({"prompt_token_ids": TOKENS}, greedy)
            answers.append(list(made.outputs[0].token_ids))
            if model is files.gguf:
                llm.save(tmp_path / "saved")
    assert answers[0] == answers[1]
    saved, given = (load_model(one, dtype="float32") for one in (tmp_path / "saved", files.gguf))
    expected = plain_logits(given, TOKENS)
    np.testing.assert_allclose(plain_logits(saved, TOKENS), expected, rtol=1e-5, atol=1e-5)


def test_llama_3_frequencies_are_recognised(tmp_path: Path) -> None:
    """The file holds factors of wave lengths; which settings they follow from is found."""
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}  # fmt: skip
    pairs = 256 // 4 // 2
    lengths = 2 * np.pi * 5e5 ** (np.arange(pairs) / pairs)
    smooth = (8192 / lengths - 1) / 3
    middle = 1 / ((1 - smooth) / 8 + smooth)
    factors = np.where(lengths < 2048, 1, np.where(lengths > 8192, 8, middle))
    for name, given in (("right", factors), ("odd", factors + 1)):
        more = {"rope_freqs.weight": given}
        rope = {"rope_theta": 5e5, **scaling}
        files = write_gguf_model(
            tmp_path / name, "llama", always("F32"), more=more, rope_parameters=rope
        )
        if name == "right":
            found = read_model_config(files.gguf)
            assert found.layers == read_model_config(files.folder).layers
    with pytest.raises(CheckpointError, match=r"'rope_freqs.weight' holds other factors"):
        read_model_config(files.gguf)


def test_every_packed_type_is_decoded_as_llama_cpp_does() -> None:
    """Against the published decoders, number by number in Python."""
    for packed in TYPES.values():
        if packed.name in FORMATS:
            blocks = random_blocks(packed, 3)
            found = FORMATS[packed.name].decode(blocks).dequantized().reshape(3, -1)
            expected = [BY_NUMBER[packed.name](one) for one in blocks]
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def random_blocks(packed: PackedType, count: int) -> np.ndarray:
    rng = np.random.default_rng(1)
    blocks = rng.integers(0, 256, (count, packed.size)).astype(np.uint8)
    if packed.name == "MXFP4":
        blocks[:, 0] = rng.integers(100, 140, count)
    for at in HALVES[packed.name]:
        halves = rng.normal(size=(count, 1)).astype(np.float16)
        blocks[:, at : at + 2] = halves.view(np.uint8)
    return blocks


HALVES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q4_K": (0, 2),
    "Q5_K": (0, 2), "Q6_K": (208,), "Q2_K": (80, 82), "Q3_K": (108,), "IQ4_NL": (0,),
    "IQ4_XS": (0,), "MXFP4": (),
}  # fmt: skip


def half(block: np.ndarray, at: int) -> float:
    return float(block[at : at + 2].view(np.float16)[0])


def nibble(codes: np.ndarray, number: int) -> int:
    return int(codes[number % 16]) >> 4 * (number // 16) & 15


def legacy(codes_at: int, middle: int, fifth_at: int | None, least_at: int | None) -> Any:
    def decode(block: np.ndarray) -> list[float]:
        found = []
        for number in range(32):
            code = nibble(block[codes_at:], number)
            if fifth_at is not None:
                code |= (int(block[fifth_at + number // 8]) >> number % 8 & 1) << 4
            least = 0.0 if least_at is None else half(block, least_at)
            found.append(half(block, 0) * (code - middle) + least)
        return found

    return decode


def with_groups(codes_at: int, fifth_at: int | None) -> Any:
    def decode(block: np.ndarray) -> list[float]:
        found, six = [], [int(byte) for byte in block[4:16]]
        for number in range(256):
            group, inside = divmod(number, 32)
            if group < 4:
                scale, least = six[group] & 63, six[group + 4] & 63
            else:
                scale = six[group + 4] & 15 | six[group - 4] >> 6 << 4
                least = six[group + 4] >> 4 | six[group] >> 6 << 4
            code = int(block[codes_at + group // 2 * 32 + inside]) >> 4 * (group % 2) & 15
            if fifth_at is not None:
                code |= (int(block[fifth_at + inside]) >> group & 1) << 4
            found.append(half(block, 0) * scale * code - half(block, 2) * least)
        return found

    return decode


def sixes(block: np.ndarray) -> list[float]:
    found = []
    for number in range(256):
        part, inside = divmod(number, 128)
        quarter, lane = divmod(inside, 32)
        low = int(block[part * 64 + lane + 32 * (quarter % 2)]) >> 4 * (quarter // 2) & 15
        high = int(block[128 + part * 32 + lane]) >> 2 * quarter & 3
        scale = int(block[192 + number // 16].view(np.int8))
        found.append(half(block, 208) * scale * ((low | high << 4) - 32))
    return found


def twos(block: np.ndarray) -> list[float]:
    found = []
    for number in range(256):
        part, inside = divmod(number, 128)
        code = int(block[16 + part * 32 + inside % 32]) >> 2 * (inside // 32) & 3
        scale = int(block[number // 16])
        found.append(half(block, 80) * (scale & 15) * code - half(block, 82) * (scale >> 4))
    return found


def threes(block: np.ndarray) -> list[float]:
    found, six = [], [int(byte) for byte in block[96:108]]
    for number in range(256):
        (part, inside), group = divmod(number, 128), number // 16
        code = int(block[32 + part * 32 + inside % 32]) >> 2 * (inside // 32) & 3
        third = int(block[inside % 32]) >> (4 * part + inside // 32) & 1
        scale = six[group % 8] >> 4 * (group // 8) & 15
        scale |= (six[8 + group % 4] >> 2 * (group // 4) & 3) << 4
        found.append(half(block, 108) * (scale - 32) * (code + 4 * third - 4))
    return found


IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def fours(block: np.ndarray) -> list[float]:
    found, top = [], int(block[2]) | int(block[3]) << 8
    for number in range(256):
        group, inside = divmod(number, 32)
        scale = int(block[4 + group // 2]) >> 4 * (group % 2) & 15
        scale |= (top >> 2 * group & 3) << 4
        code = nibble(block[8 + 16 * group :], inside)
        found.append(half(block, 0) * (scale - 32) * IQ4[code])
    return found


def fp4(block: np.ndarray) -> list[float]:
    found = []
    for number in range(32):
        code = nibble(block[1:], number)
        power, fraction = code >> 1 & 3, code & 1
        value = (1 + fraction / 2) * 2.0 ** (power - 1) if power else fraction / 2
        found.append((-value if code & 8 else value) * 2.0 ** (int(block[0]) - 127))
    return found


BY_NUMBER: dict[str, Callable[[np.ndarray], list[float]]] = {
    "Q4_0": legacy(2, 8, None, None),
    "Q4_1": legacy(4, 0, None, 2),
    "Q5_0": legacy(6, 16, 2, None),
    "Q5_1": legacy(8, 0, 4, 2),
    "Q8_0": lambda block: [half(block, 0) * int(one) for one in block[2:].view(np.int8)],
    "Q4_K": with_groups(16, None),
    "Q5_K": with_groups(48, 16),
    "Q6_K": sixes,
    "Q2_K": twos,
    "Q3_K": threes,
    "IQ4_NL": lambda block: [half(block, 0) * IQ4[nibble(block[2:], n)] for n in range(32)],
    "IQ4_XS": fours,
    "MXFP4": fp4,
}


def changed(file: Path, change: Callable[[bytearray], object]) -> Path:
    data = bytearray(file.read_bytes())
    change(data)
    file.write_bytes(data)
    return file


def spoil_scale(data: bytearray) -> None:
    data[-34:-32] = b"\x00\x7e"  # NaN, in the last block


def other_type(data: bytearray) -> None:
    at = data.index(b"blk.0.ffn_up.weight") + len(b"blk.0.ffn_up.weight") + 4 + 16
    data[at] = 21


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (spoil_scale, r"'blk.1.ffn_up.weight' holds NaN"),
        (lambda data: data.__delitem__(slice(-64, None)), "ends after the end of the file"),
        (lambda data: data.__setitem__(slice(0, 4), b"GGML"), r"begins with b'GGML'"),
        (lambda data: data.__setitem__(slice(24, 32), b"\xff" * 8), "bytes are missing at its end"),
        (other_type, "'blk.0.ffn_up.weight' is packed as IQ3_S, which is not built"),
    ],
)
def test_damage_is_named(change: Any, message: str, tmp_path: Path) -> None:
    file = changed(write_gguf_model(tmp_path, "llama", always("Q8_0")).gguf, change)
    with pytest.raises(CheckpointError, match=message):
        load_model(file)


def test_what_is_not_built_is_named(tmp_path: Path) -> None:
    files = write_gguf_model(
        tmp_path / "experts", "llama", always("F32"), {"llama.expert_group_scale": 8}
    )
    with pytest.raises(CheckpointError, match=r"llama.expert_group_scale is 8, expected nothing"):
        load_model(files.gguf)
    files = write_gguf_model(tmp_path / "bare", "llama", always("F32"))
    write_gguf(tmp_path / "other.gguf", {"general.architecture": "mamba"}, {})
    with pytest.raises(CheckpointError, match=r"general.architecture is 'mamba', expected one of"):
        load_model(tmp_path / "other.gguf")
    with pytest.raises(CheckpointError, match=r"holds no vocabulary. Give tokenizer=FOLDER"):
        jengine.LLM(files.gguf, show_progress=False)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "kind"), [("llama", "Q8_0"), ("qwen2", "F16")])
def test_transformers_reads_the_same(family: str, kind: str, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    files = write_gguf_model(tmp_path, family, always(kind))
    model = transformers.AutoModelForCausalLM.from_pretrained(
        files.gguf.parent, gguf_file=files.gguf.name, dtype=torch.float32
    )
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS])).logits[0].float().numpy()
    found = plain_logits(load_model(files.gguf, dtype="float32"), TOKENS)
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-3)
