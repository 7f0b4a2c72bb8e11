"""GGUF files of encoders give the embeddings of the transformers models they were made of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jengine import LLM
from jengine.errors import CheckpointError
from jengine.weights.folder import read_model_config
from jengine.weights.safetensors_file import read_header
from tests.api.test_pooling import NO_BAR, cosines, hidden_states, prompts
from tests.weights.gguf.architectures import write_architecture

torch = pytest.importorskip("torch")
hf = pytest.importorskip("transformers")
gguf = pytest.importorskip("gguf")

BASE: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "max_position_embeddings": 130, "pad_token_id": 0,
    "initializer_range": 0.3,
}  # fmt: skip
MODERN = {**BASE, "local_attention": 16, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1,
          "sep_token_id": 2}  # fmt: skip
SETTINGS: dict[str, Any] = {
    "enforce_eager": True, "show_progress": False, "max_num_batched_tokens": 192,
    "skip_tokenizer_init": True, "dtype": "float32",
    "compilation_config": {"prefill_tokens": [192], "pages": [9]},
}  # fmt: skip
PROMPTS = prompts(5, 40, 1, 100, 77)
Make = Callable[[], Any]
# Name -> the model, llama.cpp's architecture, and the type of pooling that its file has.
ENCODERS: dict[str, tuple[Make, str, int]] = {
    "bert": (lambda: hf.BertModel(hf.BertConfig(**BASE)), "bert", 2),
    "roberta": (
        lambda: hf.XLMRobertaModel(hf.XLMRobertaConfig(**{**BASE, "pad_token_id": 1})), "bert", 1,
    ),
    "nomic": (
        lambda: hf.NomicBertModel(hf.NomicBertConfig(**BASE, head_dim=8)), "nomic-bert", 1,
    ),
    "modernbert": (
        lambda: hf.ModernBertModel(hf.ModernBertConfig(**MODERN)), "modern-bert", 2,
    ),
}  # fmt: skip


def write_encoder(folder: Path, name: str, pooling: int | None = None) -> tuple[Any, Path]:
    """A model, and the file that llama.cpp's converter would make of it."""
    make, architecture, usual = ENCODERS[name]
    torch.manual_seed(0)
    model = make().eval()
    model.save_pretrained(folder)
    config, file = model.config, folder / "model.gguf"
    writer = gguf.GGUFWriter(file, architecture)
    offset = config.pad_token_id + 1 if name == "roberta" else 0
    writer.add_context_length(config.max_position_embeddings - offset)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType(usual if pooling is None else pooling))
    writer.add_token_list([str(token) for token in range(config.vocab_size)])
    if name == "modernbert":
        writer.add_layer_norm_eps(config.norm_eps)
        writer.add_sliding_window(config.local_attention)
        writer.add_sliding_window_pattern(3)
        writer.add_rope_freq_base(config.rope_parameters["full_attention"]["rope_theta"])
        writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
        writer.add_vocab_size(config.vocab_size)
    else:
        writer.add_layer_norm_eps(config.layer_norm_eps)
    if name == "nomic":
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    kinds = {known: kind for kind, known in gguf.MODEL_ARCH_NAMES.items()}
    table = gguf.get_tensor_name_map(kinds[architecture], config.num_hidden_layers)
    for own, tensor in read_header(folder / "model.safetensors").items():
        if own.startswith("pooler."):
            continue
        array = np.array(tensor.read(), np.float32)
        if own == "embeddings.position_embeddings.weight":
            array = array[offset:]  # rows of positions that no token has
        known = table.get_name(own, (".weight", ".bias"))
        assert known is not None, own
        writer.add_tensor(known, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model, file


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODERS)
def test_embeddings_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model, file = write_encoder(tmp_path, name)
    with LLM(file, **SETTINGS) as llm:
        found = [one.outputs.embedding for one in llm.embed(PROMPTS, **NO_BAR)]
    states = [hidden_states(model, ids) for ids in PROMPTS]
    expected = [one.mean(axis=0) if ENCODERS[name][2] == 1 else one[0] for one in states]
    assert cosines(found, expected).min() > 0.99999


def test_heads_that_rank_are_refused(tmp_path: Path) -> None:
    _, file = write_encoder(tmp_path, "bert", 4)
    with pytest.raises(
        CheckpointError, match=r"pooling_type is 4, expected 0 \(none\), 1 \(MEAN\)"
    ):
        LLM(file, **SETTINGS)


@pytest.mark.slow
def test_decoders_that_embed_pool_as_their_file_says(tmp_path: Path) -> None:
    files = write_architecture(tmp_path, "qwen3", {"qwen3.pooling_type": 3})
    found = []
    for model, more in ((files.gguf, {}), (files.folder, {"runner": "pooling"})):
        with LLM(model, max_model_len=144, **SETTINGS, **more) as llm:
            found.append([one.outputs.embedding for one in llm.embed(PROMPTS, **NO_BAR)])
    np.testing.assert_allclose(*found, atol=1e-5)


def test_decoders_that_see_ahead_are_refused(tmp_path: Path) -> None:
    files = write_architecture(tmp_path, "llama", {"llama.attention.causal": False})
    with pytest.raises(
        CheckpointError, match=r"attention.causal is False, expected True: no other"
    ):
        read_model_config(files.gguf)
