"""RoBERTa and XLM-R: BERT with positions starting after the padding index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jengine.config import HeadLayer, ModelConfig
from jengine.models.reading.encoder import encoder_names, read_encoder, write_encoder
from jengine.models.reading.fields import Fields
from jengine.models.reading.pooling import OwnPooling, label_names
from jengine.models.tensors.checkpoint import IgnoredTensor

ARCHITECTURES = (
    "RobertaModel", "RobertaForSequenceClassification", "RobertaForTokenClassification",
    "RobertaForMaskedLM", "XLMRobertaModel", "XLMRobertaForSequenceClassification",
    "XLMRobertaForTokenClassification", "XLMRobertaForMaskedLM",
)  # fmt: skip
MODELS = "RoBERTa, XLM-R"
NAMES = encoder_names(
    "roberta.",
    IgnoredTensor(r"roberta\.pooler\.dense\.(weight|bias)", "it is not used by this class"),
    IgnoredTensor(r"roberta\.embeddings\.position_ids", "old files store 0, 1, 2, ..."),
    IgnoredTensor(r"lm_head\..*", "the head that predicts masked tokens is not used"),
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    config = read_encoder(fields)
    offset = fields.integer("pad_token_id", 1, minimum=0) + 1
    rows = fields.integer("max_position_embeddings", 512)
    return replace(config, position_offset=offset, max_position=rows - offset)


def read_pooling(hf: Mapping[str, object], config: ModelConfig) -> OwnPooling:
    """Default pooling: first token; sequence classifiers have a dense layer before the
    classifier."""
    if not config.architecture.endswith("Classification"):
        return OwnPooling("CLS")
    labels = len(label_names(Fields(hf), config.architecture))
    if config.architecture.endswith("ForTokenClassification"):
        return OwnPooling("CLS", (HeadLayer(labels, "classifier"),))
    dense = HeadLayer(config.hidden_size, "classifier.dense", "tanh")
    return OwnPooling("CLS", (dense, HeadLayer(labels, "classifier.out_proj")))


def write_config(config: ModelConfig) -> dict[str, object]:
    kind = "xlm-roberta" if config.architecture.startswith("XLM") else "roberta"
    return {
        **write_encoder(config),
        "model_type": kind,
        "pad_token_id": config.position_offset - 1,
        "max_position_embeddings": config.max_position + config.position_offset,
    }
