"""Finds config.json keys whose values do not affect the model; each must be known to be harmless.

For adding a model: `python -m jengine.models.unread MODEL_FOLDER` lists them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jengine.config import ModelConfig
from jengine.models.registry import model_config

# Training, classification, file formats, and transformers' generate.
HARMLESS = {
    *("_name_or_path", "model_type", "transformers_version", "pad_token_id", "use_cache"),
    *("output_attentions", "output_hidden_states", "return_dict", "is_encoder_decoder"),
    "is_decoder",
    *("chunk_size_feed_forward", "id2label", "label2id", "problem_type"),
    *("attention_probs_dropout_prob", "hidden_dropout_prob", "activation_dropout"),
    *("attention_dropout", "attn_pdrop", "embd_pdrop", "emb_pdrop", "resid_pdrop"),
    "residual_dropout",
    *("output_router_logits", "router_aux_loss_coef", "router_jitter_noise"),
    *("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels"),
    *(
        "summary_first_dropout",
        "dropout",
        "hidden_dropout",
        "embedding_dropout",
        "classifier_dropout",
        "layerdrop",
    ),
    "mlp_dropout",
    "initializer_cutoff_factor",
    # Special tokens of tokenizers.
    "cls_token_id",
    "sep_token_id",
    # MTP layers.
    "num_nextn_predict_layers",
    # The same attention with less overflow in float16.
    "reorder_and_upcast_attn",
    # Llama's bitwise equality with its sliced training.
    "pretraining_tp",
}


KeyPath = tuple[str, ...]  # from the outermost key inwards
Reader = Callable[[Mapping[str, object]], ModelConfig]


def read_keys(
    hf: Mapping[str, object], keys: Iterable[str], read: Reader = model_config
) -> frozenset[str]:
    """Keys at which an invalid value raises or changes the model. They need not be present in `hf`.
    Raises what `read` raises for `hf` itself."""
    config = read(hf)
    return frozenset(key for key in keys if _is_read(hf, (key,), read, config))


def unread_keys(hf: Mapping[str, object], read: Reader = model_config) -> dict[str, object]:
    """Keys of a parsed config.json that do not affect the model, with their values.

    Nested objects are probed key by key and named as in `rope_parameters.factor`.
    """
    config = read(hf)

    def unread(values: Mapping[str, object], path: KeyPath) -> Iterator[tuple[str, object]]:
        for key, value in values.items():
            inner = (*path, key)
            if not _is_read(hf, inner, read, config):
                yield ".".join(inner), value
            elif isinstance(value, Mapping):
                yield from unread(value, inner)

    return dict(unread(hf, ()))


def is_harmless(name: str) -> bool:
    """Whether a key listed by `unread_keys` is known not to affect outputs."""
    return name.rpartition(".")[2] in HARMLESS


def _is_read(hf: Mapping[str, object], path: KeyPath, read: Reader, config: ModelConfig) -> bool:
    try:
        return read(_changed(hf, path)) != config
    except Exception:  # noqa: BLE001 - whatever a reader raises, it has looked at the value
        return True


def _changed(values: Any, path: KeyPath) -> dict[str, object]:
    """Copy with an invalid value at this path."""
    key, *rest = path
    return {**values, key: _changed(values[key], tuple(rest)) if rest else object()}


def main(folder: str) -> None:
    """Print a folder's unread keys with their values."""
    hf = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    for name, value in unread_keys(hf).items():
        sys.stdout.write(f"{name}: {json.dumps(value)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
