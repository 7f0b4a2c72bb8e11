"""Nothing that config.json says is passed over, but what changes no answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jengine.models.unread import main, unread_keys
from tests.models.tiny_models import FAMILIES, config_class, tiny_settings

# Training, classification, file formats, and what transformers' own generate does.
HARMLESS = {
    *("_name_or_path", "model_type", "transformers_version", "pad_token_id", "use_cache"),
    *("output_attentions", "output_hidden_states", "return_dict", "is_encoder_decoder"),
    "is_decoder",
    *("chunk_size_feed_forward", "id2label", "label2id", "problem_type"),
    *("attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop", "residual_dropout"),
    *("output_router_logits", "router_aux_loss_coef", "router_jitter_noise"),
    *("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels"),
    *("summary_first_dropout", "dropout", "hidden_dropout", "classifier_dropout", "layerdrop"),
    # Layers that draft tokens.
    "num_nextn_predict_layers",
    # A way to compute the same attention with less overflow in float16.
    "reorder_and_upcast_attn",
    # Llama's was for bitwise equality with its training in slices.
    "pretraining_tp",
}
# Sizes of heads that transformers writes in addition to those that they follow from.
HEADS = {"head_dim", "qk_head_dim"}
DRAFTS = {"num_nextn_predict_layers", "num_mtp_layers"}  # layers that are not used
# Harmless only with the value that a default config has.
IF_UNUSED = {
    "deepseek_v2": HEADS,
    "deepseek_v3": HEADS | DRAFTS,
    "qwen2": {"sliding_window"},  # with use_sliding_window=False
    "qwen3": {"sliding_window"},
    "qwen3_moe": {"sliding_window"},
    "qwen2_moe": {"sliding_window", "max_window_layers"},
    "smollm3": {"sliding_window"},
    "exaone4": {"sliding_window_pattern"},  # layer_types follow from it
    "gemma3": {"_sliding_window_pattern"},  # layer_types, which are written too, follow from it
    "phi3": {"original_max_position_embeddings"},  # of longrope, which is refused
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_key_of_transformers_is_read_or_harmless(family: str) -> None:
    pytest.importorskip("torch")  # transformers' model classes are empty without it
    pytest.importorskip("transformers")
    written = config_class(family)(**tiny_settings(family)).to_dict()
    if family == "gemma3":
        del written["rope_parameters"]  # else it reads a copy with one of the two in its place
    unread = unread_keys({**written, "architectures": [FAMILIES[family]]})
    assert set(unread) <= HARMLESS | IF_UNUSED.get(family, set())


def test_what_is_unread_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {**tiny_settings("llama"), "architectures": [FAMILIES["llama"]]}
    text = json.dumps({**settings, "residual_multiplier": 0.22})
    (tmp_path / "config.json").write_text(text)
    main(str(tmp_path))
    assert capsys.readouterr().out == "residual_multiplier: 0.22\n"
