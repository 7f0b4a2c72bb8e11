"""The keys of a config.json whose values make no difference: each of them must be harmless.

For those who add a model: `python -m jengine.models.unread MODEL_FOLDER` prints them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from jengine.config import ModelConfig
from jengine.models.registry import model_config

# Training, classification, file formats, and what transformers' own generate does.
HARMLESS = {
    *("_name_or_path", "model_type", "transformers_version", "pad_token_id", "use_cache"),
    *("output_attentions", "output_hidden_states", "return_dict", "is_encoder_decoder"),
    "is_decoder",
    *("chunk_size_feed_forward", "id2label", "label2id", "problem_type"),
    *("attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop", "residual_dropout"),
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
    # Layers that draft tokens.
    "num_nextn_predict_layers",
    # A way to compute the same attention with less overflow in float16.
    "reorder_and_upcast_attn",
    # Llama's was for bitwise equality with its training in slices.
    "pretraining_tp",
}


Reader = Callable[[Mapping[str, object]], ModelConfig]


def read_keys(
    hf: Mapping[str, object], keys: Iterable[str], read: Reader = model_config
) -> frozenset[str]:
    """The keys at which a value that no key may have is refused or gives another model.

    The keys need not be in `hf`, a parsed config.json; if `hf` itself is refused, so is this.
    """
    config = read(hf)

    def differs(key: str) -> bool:
        try:
            return read({**hf, key: object()}) != config
        except Exception:  # noqa: BLE001 - whatever a reader raises, it has looked at the value
            return True

    return frozenset(key for key in keys if differs(key))


def unread_keys(hf: Mapping[str, object], read: Reader = model_config) -> list[str]:
    """Keys of a parsed config.json, in their order, whose value changes nothing about the model."""
    looked_at = read_keys(hf, hf, read)
    return [key for key in hf if key not in looked_at]


def main(folder: str) -> None:
    """Print the keys of a folder's config.json, with their values."""
    hf = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    for key in unread_keys(hf):
        sys.stdout.write(f"{key}: {json.dumps(hf[key])}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
