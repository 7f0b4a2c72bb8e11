"""The keys of a config.json that its family never reads: each of them must be harmless.

For those who add a model: `python -m jengine.models.unread MODEL_FOLDER` prints them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

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


class Watched(Mapping[str, object]):
    """A mapping that notes which keys were asked for by name."""

    def __init__(self, values: Mapping[str, object]):
        self.values_by_key = values
        self.seen: set[str] = set()

    def __getitem__(self, key: str) -> object:
        self.seen.add(key)
        return self.values_by_key[key]

    def __contains__(self, key: object) -> bool:
        return key in self.values_by_key

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_key)

    def __len__(self) -> int:
        return len(self.values_by_key)


def unread_keys(hf: Mapping[str, object]) -> list[str]:
    """Keys of a parsed config.json that reading it did not look at, in their order."""
    watched = Watched(hf)
    model_config(watched)
    return [key for key in hf if key not in watched.seen]


def main(folder: str) -> None:
    """Print the keys of a folder's config.json, with their values."""
    hf = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    for key in unread_keys(hf):
        sys.stdout.write(f"{key}: {json.dumps(hf[key])}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
