"""BERT: an encoder with learned positions, token types and post-norms."""

from __future__ import annotations

from collections.abc import Mapping

from jengine.config import HeadLayer, ModelConfig
from jengine.models.reading.encoder import encoder_names, read_encoder, write_encoder
from jengine.models.reading.fields import Fields
from jengine.models.reading.pooling import OwnPooling, label_names
from jengine.models.tensors.checkpoint import IgnoredTensor

ARCHITECTURES = ("BertModel", "BertForSequenceClassification", "BertForTokenClassification",
                 "BertForMaskedLM", "HF_ColBERT")  # fmt: skip
MODELS = "BERT, and ColBERT over it"
NAMES = encoder_names(
    "bert.",
    IgnoredTensor(r"bert\.pooler\.dense\.(weight|bias)", "it is not used by this class"),
    IgnoredTensor(r"bert\.embeddings\.position_ids", "old files store 0, 1, 2, ..."),
    IgnoredTensor(r"cls\..*", "the head that predicts masked tokens is not used"),
)
POOLER = HeadLayer(0, "bert.pooler.dense", "tanh")
COLBERT_WIDTH = 128


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    return read_encoder(Fields(hf))


def read_pooling(hf: Mapping[str, object], config: ModelConfig) -> OwnPooling:
    """Default pooling: the first token. Sequence classifiers apply BERT's pooler before the
    classifier."""
    fields, hidden = Fields(hf), config.hidden_size
    if config.architecture == "HF_ColBERT":
        width = fields.integer("dim", COLBERT_WIDTH)
        return OwnPooling("CLS", (HeadLayer(width, "linear", bias=False),), task="token_embed")
    if not config.architecture.endswith("Classification"):
        return OwnPooling("CLS")
    classes = HeadLayer(len(label_names(fields, config.architecture)), "classifier")
    if config.architecture.endswith("ForTokenClassification"):
        return OwnPooling("CLS", (classes,))
    pooler = HeadLayer(hidden, POOLER.name, POOLER.activation)
    return OwnPooling("CLS", (pooler, classes))


def write_config(config: ModelConfig) -> dict[str, object]:
    return {**write_encoder(config), "model_type": "bert"}
