"""Encoders and other models that see ahead equal transformers: packed, of any lengths, uncached."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from jengine import LLM
from jengine.errors import CheckpointError, RequestError
from jengine.models import registry
from tests.api.test_pooling import NO_BAR, cosines, hidden_states, prompts, unit
from tests.marks import slow

BASE: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "max_position_embeddings": 130, "pad_token_id": 0,
}  # fmt: skip
MODERN = {**BASE, "local_attention": 16, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1,
          "sep_token_id": 2}  # fmt: skip
GEMMA = {**BASE, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 16,
         "use_bidirectional_attention": True}  # fmt: skip
PAD_1 = {**BASE, "pad_token_id": 1}
SMALL: dict[str, Any] = {
    "enforce_eager": True, "show_progress": False, "max_num_batched_tokens": 192,
    "compilation_config": {"prefill_tokens": [192], "pages": [9]},
}  # fmt: skip
PROMPTS = prompts(5, 40, 1, 100, 77, 120, 7, 9, 33, 64)  # more than one step takes


def saved(model: Any, folder: Path) -> Any:
    """The model, written to a folder."""
    model.eval().save_pretrained(folder)
    return model


def opened(folder: Path, **settings: Any) -> LLM:
    """An engine of the folder's model."""
    return LLM(folder, **{"skip_tokenizer_init": True, **SMALL, **settings})


EMBEDDERS: dict[str, tuple[Callable[[], Any], str]] = {
    "bert": (lambda: hf.BertModel(hf.BertConfig(**BASE)), "CLS"),
    "roberta": (lambda: hf.RobertaModel(hf.RobertaConfig(**PAD_1)), "MEAN"),
    "modernbert": (lambda: hf.ModernBertModel(hf.ModernBertConfig(**MODERN)), "CLS"),
    "nomic": (lambda: hf.NomicBertModel(hf.NomicBertConfig(**BASE, head_dim=8)), "MEAN"),
    "gemma3": (lambda: hf.Gemma3TextModel(hf.Gemma3TextConfig(**GEMMA)), "MEAN"),
}


@pytest.mark.parametrize(("name", "backend"), [
    *[(name, "auto") for name in EMBEDDERS if name != "roberta"],
    *slow(("roberta", "auto"), ("modernbert", "xla")),
])  # fmt: skip
def test_embeddings(tmp_path: Path, name: str, backend: str) -> None:
    torch.manual_seed(0)
    make, kind = EMBEDDERS[name]
    model = saved(make(), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    if "sliding_window" in config and name == "gemma3":  # transformers halves it when it reads it
        (tmp_path / "config.json").write_text(json.dumps({**config, "sliding_window": 16}))
    how = {"pooler_config": {"pooling_type": kind}, "attention_backend": backend}
    with opened(tmp_path, **how) as llm:
        found = llm.embed(PROMPTS, **NO_BAR)
        assert llm.stats().running == 0
    states = [hidden_states(model, ids) for ids in PROMPTS]
    expected = [one.mean(axis=0) if kind == "MEAN" else one[0] for one in states]
    assert cosines([one.outputs.embedding for one in found], expected).min() > 0.99999


def test_nomics_older_words_mean_the_same() -> None:
    older = {
        "architectures": ["NomicBertModel"], "n_embd": 32, "n_head": 4, "n_inner": 48, "n_layer": 3,
        "n_positions": 8192, "max_trained_positions": 130, "layer_norm_epsilon": 1e-12,
        "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "activation_function": "swiglu",
        "prenorm": False, "vocab_size": 97, "type_vocab_size": 2,
        "auto_map": {"AutoModel": "never.run"},
    }  # fmt: skip
    newer = {
        "architectures": ["NomicBertModel"], **BASE, "rope_theta": 1000.0, "hidden_act": "silu",
    }  # fmt: skip
    assert registry.model_config(older) == registry.model_config(newer)
    assert registry.model_config(registry.write_config(registry.model_config(newer))) == (
        registry.model_config(newer)
    )
    with pytest.raises(CheckpointError, match="num_experts"):
        registry.model_config({**older, "num_experts": 8})


CLASSIFIERS: dict[str, Callable[[], Any]] = {
    "bert": lambda: hf.BertForSequenceClassification(hf.BertConfig(**BASE, num_labels=3)),
    "xlm-r": lambda: hf.XLMRobertaForSequenceClassification(
        hf.XLMRobertaConfig(**PAD_1, num_labels=1)
    ),
    "modernbert": lambda: hf.ModernBertForSequenceClassification(
        hf.ModernBertConfig(**MODERN, num_labels=3, classifier_pooling="mean")
    ),
}


@pytest.mark.parametrize("name", ["xlm-r", *slow("bert", "modernbert")])
def test_classes(tmp_path: Path, name: str) -> None:
    torch.manual_seed(0)
    model = saved(CLASSIFIERS[name](), tmp_path)
    with opened(tmp_path) as llm:
        found = [one.outputs.probs for one in llm.classify(PROMPTS, **NO_BAR)]
    with torch.no_grad():
        logits = [model(torch.tensor([ids])).logits[0] for ids in PROMPTS]
    one_label = len(found[0]) == 1
    expected = [one.sigmoid() if one_label else one.softmax(-1) for one in logits]
    np.testing.assert_allclose(found, torch.stack(expected), atol=1e-4)


def test_classes_of_tokens(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = saved(hf.BertForTokenClassification(hf.BertConfig(**BASE, num_labels=4)), tmp_path)
    with opened(tmp_path) as llm:
        found = llm.encode(PROMPTS[:3], pooling_task="token_classify", **NO_BAR)
    for ids, one in zip(PROMPTS, found, strict=False):
        with torch.no_grad():
            expected = model(torch.tensor([ids])).logits[0].softmax(-1)
        np.testing.assert_allclose(one.outputs.data, expected, atol=1e-4)


def words_tokenizer(folder: Path) -> hf.PreTrainedTokenizerFast:
    """One token for each of some words, with BERT's special tokens."""
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    vocabulary = {
        word: index for index, word in enumerate([*special, *map(str, range(83)), *"abcdefghij"])
    }
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )  # fmt: skip
    tokenizer = hf.PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]",
        unk_token="[UNK]", model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )  # fmt: skip
    tokenizer.save_pretrained(folder)
    return tokenizer


QUERY, DOCUMENTS = "1 2 3", ["4 5 6 7", "8", "9 10 11 12 13 14", "1 2 3"]


def test_a_cross_encoder_reads_both_texts(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = hf.BertConfig(**{**BASE, "initializer_range": 0.5}, num_labels=1)
    model = saved(hf.BertForSequenceClassification(config), tmp_path)
    tokenizer = words_tokenizer(tmp_path)
    with opened(tmp_path, skip_tokenizer_init=False) as llm:
        found = [one.outputs.score for one in llm.score(QUERY, DOCUMENTS, **NO_BAR)]
        with pytest.raises(RequestError, match="1:1, 1:N or N:N"):
            llm.score([QUERY] * 2, DOCUMENTS, **NO_BAR)
        outputs = llm.score([QUERY], [DOCUMENTS[0]], **NO_BAR)
    given = tokenizer([QUERY] * 4, DOCUMENTS, padding=True, return_tensors="pt")
    assert given["token_type_ids"].max() == 1
    with torch.no_grad():
        expected = model(**given).logits[:, 0].sigmoid()
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert outputs[0].prompt_token_ids == tokenizer(QUERY, DOCUMENTS[0])["input_ids"]


def test_colbert_adds_up_the_best_matches(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = saved(hf.BertModel(hf.BertConfig(**BASE)), tmp_path)
    tokenizer, linear = words_tokenizer(tmp_path), torch.randn(16, 32)
    tensors = {f"bert.{name}": one for name, one in model.state_dict().items()}
    save_file({**tensors, "linear.weight": linear}, tmp_path / "model.safetensors")
    overrides = {"architectures": ["HF_ColBERT"], "dim": 16}
    with opened(tmp_path, skip_tokenizer_init=False, hf_overrides=overrides) as llm:
        found = [one.outputs.score for one in llm.score(QUERY, DOCUMENTS, **NO_BAR)]

    def rows(text: str) -> np.ndarray:
        return unit(hidden_states(model, tokenizer(text)["input_ids"]) @ linear.numpy().T)

    expected = [(rows(QUERY) @ rows(one).T).max(axis=1).sum() for one in DOCUMENTS]
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_folder_of_sentence_transformers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = saved(hf.BertModel(hf.BertConfig(**BASE)), tmp_path)
    tokenizer = words_tokenizer(tmp_path)
    weight, bias = torch.randn(8, 32), torch.randn(8)
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "2_Dense").mkdir()
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense"),
               ("3_Normalize", "Normalize")]  # fmt: skip
    files: dict[str, Any] = {
        "modules.json": [
            {"idx": index, "path": path, "type": f"sentence_transformers.models.{kind}"}
            for index, (path, kind) in enumerate(modules)
        ],
        "1_Pooling/config.json": {
            "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True,
        },
        "2_Dense/config.json": {
            "in_features": 32, "out_features": 8, "bias": True,
            "activation_function": "torch.nn.modules.activation.Tanh",
        },
        "sentence_bert_config.json": {"max_seq_length": 64, "do_lower_case": True},
        "config_sentence_transformers.json": {"prompts": {"query": "1 "}},
    }  # fmt: skip
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    save_file(
        {"linear.weight": weight, "linear.bias": bias}, tmp_path / "2_Dense/model.safetensors"
    )
    with opened(tmp_path, skip_tokenizer_init=False) as llm:
        assert llm.max_model_len == 64
        assert llm.engine.model.pooling.prompts == (("query", "1 "),)
        found = llm.embed(["A b C", "1 D", "J"], **NO_BAR)
    lowered = ["a b c", "1 d", "j"]
    states = [hidden_states(model, tokenizer(one)["input_ids"]) for one in lowered]
    expected = [np.tanh(one.mean(axis=0) @ weight.numpy().T + bias.numpy()) for one in states]
    np.testing.assert_allclose(
        [one.outputs.embedding for one in found], unit(np.array(expected)), atol=1e-4
    )


def test_a_reranker_by_the_logits_of_two_tokens(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {**BASE, "num_key_value_heads": 2, "head_dim": 8, "tie_word_embeddings": True}
    model = saved(hf.Qwen3ForCausalLM(hf.Qwen3Config(**sizes)), tmp_path)
    tokenizer = words_tokenizer(tmp_path)
    overrides = {
        "architectures": ["Qwen3ForSequenceClassification"], "classifier_from_token": ["7", "9"],
        "is_original_qwen3_reranker": True,
    }  # fmt: skip
    with opened(tmp_path, skip_tokenizer_init=False, hf_overrides=overrides) as llm:
        found = [one.outputs.score for one in llm.score(QUERY, DOCUMENTS, **NO_BAR)]
    no, yes = tokenizer.convert_tokens_to_ids(["7", "9"])
    for document, score in zip(DOCUMENTS, found, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([tokenizer(QUERY + document)["input_ids"]])).logits[0, -1]
        assert abs(score - float((logits[yes] - logits[no]).sigmoid())) < 1e-4


def test_a_prompt_has_the_same_bits_in_any_batch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    saved(hf.ModernBertModel(hf.ModernBertConfig(**MODERN)), tmp_path)
    with opened(tmp_path, deterministic=True) as llm:
        together = llm.embed(PROMPTS, **NO_BAR)
        alone = [llm.embed([ids], **NO_BAR)[0] for ids in PROMPTS]
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_array_equal(one.outputs.embedding, other.outputs.embedding)
