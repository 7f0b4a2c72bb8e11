"""A GGUF file with nothing beside it: it chats, and is saved as a folder for transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jengine
from jengine import SamplingParams
from jengine.errors import CheckpointError
from jengine.text.vocabulary.splits import SPLITTINGS
from jengine.weights.folder import open_checkpoint
from jengine.weights.gguf.blocks import plain_array
from jengine.weights.gguf.header import read_header
from tests.weights.gguf.architectures import write_architecture
from tests.weights.gguf.gguf_models import plain, write_gguf
from tests.weights.gguf.vocabularies import byte_pairs, merges_of, tokens_of, types_of
from tests.weights.test_quantized import ENGINE

SETTINGS = {**ENGINE, "skip_tokenizer_init": False}
TEMPLATE = "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}"


def write_model(folder: Path) -> Path:
    """A tiny model with a vocabulary, a template and settings of sampling."""
    made = byte_pairs(SPLITTINGS["qwen2"].pre_tokenizer(), 400)
    tokens = tokens_of(made)
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types_of(tokens),
        "tokenizer.ggml.merges": merges_of(made),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": TEMPLATE,
        "general.sampling.temp": 0.25,
        "general.sampling.top_k": 7,
    }
    return write_architecture(folder, "llama", metadata, vocab_size=len(tokens)).gguf


@pytest.mark.slow
def test_it_chats_and_is_saved_for_transformers(tmp_path: Path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    file, saved = write_model(tmp_path), tmp_path / "saved"
    messages = [{"role": "user", "content": "Hello, world"}]
    with jengine.LLM(file, dtype="float32", **SETTINGS) as llm:
        assert llm.get_default_sampling_params().temperature == 0.25
        assert llm.get_default_sampling_params().top_k == 7
        greedy = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
        [answer] = llm.chat(messages, greedy)
        llm.save(saved)
    tokenizer = transformers.AutoTokenizer.from_pretrained(saved)
    prompt = tokenizer.apply_chat_template(messages, tokenize=False)
    assert prompt == "<s>user: Hello, world</s>"
    ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    assert ids == list(answer.prompt_token_ids)
    model = transformers.AutoModelForCausalLM.from_pretrained(saved, dtype=torch.float32)
    assert model.generation_config.eos_token_id == [2]
    assert (model.generation_config.temperature, model.generation_config.top_k) == (0.25, 7)
    made = model.generate(torch.tensor([ids]), max_new_tokens=5, min_new_tokens=5, do_sample=False)
    assert made[0, len(ids) :].tolist() == list(answer.outputs[0].token_ids)


def test_a_model_in_several_files_is_one(tmp_path: Path) -> None:
    whole = write_architecture(tmp_path, "qwen3").gguf
    header = read_header(whole)
    names = [*header.tensors]
    packed = {name: plain("F32", plain_array(header.tensors[name])) for name in names}
    metadata = {key: value for key, value in header.metadata.items() if "tokens" not in key}
    parts = []
    for number in range(3):
        part = tmp_path / f"qwen-{number + 1:05d}-of-00003.gguf"
        own = {**(metadata if number == 0 else {}), "split.no": number, "split.count": 3}
        own["split.tensors.count"] = len(names)
        write_gguf(part, own, {name: packed[name] for name in names[number::3]})
        parts.append(part)
    found, expected = open_checkpoint(parts[0]), open_checkpoint(whole)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(found[name].read(), tensor.read())
    assert {found[name].file for name in found} == {*parts}
    with pytest.raises(CheckpointError, match=r"one of 3 files; give the first, NAME-00001"):
        open_checkpoint(parts[1])
    parts[2].write_bytes(parts[1].read_bytes())
    with pytest.raises(CheckpointError, match=r"says that it is number 1 of the files, expected 2"):
        open_checkpoint(parts[0])
    parts[2].unlink()
    with pytest.raises(CheckpointError, match=r"there is no qwen-00003-of-00003.gguf"):
        open_checkpoint(parts[0])
