"""Random configs of encoder models, with and without classification heads."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from jengine.bench.fidelity.variations import EPSILONS, WIDTHS, Settings

SHARED: Mapping[str, Sequence[Any]] = {
    "vocab_size": (89, 97, 131),
    "num_hidden_layers": (1, 2, 3, 4),
    "num_attention_heads": (1, 2, 3, 4, 5),
    "intermediate_size": WIDTHS,
    "type_vocab_size": (1, 2),
    "num_labels": (2, 3, 5),
}
HEAD_SIZES = (8, 12, 16, 24, 40, 64, 80)
ACTIVATIONS = ("gelu", "relu", "silu", "gelu_new")
BERT = {"hidden_act": ACTIVATIONS, "layer_norm_eps": EPSILONS, "max_position_embeddings": (64, 130)}

ROPES = tuple({"rope_type": "default", "rope_theta": theta} for theta in (500.0, 1e3, 1e4))


class Encoder(NamedTuple):
    """A family's model classes, and its variable config keys."""

    architectures: tuple[str, ...]
    choices: Mapping[str, Sequence[Any]]


def classes(name: str) -> tuple[str, ...]:
    """The base model and its classes with heads."""
    heads = ("ForSequenceClassification", "ForTokenClassification")
    return (f"{name}Model", *(f"{name}{head}" for head in heads))


ENCODERS: Mapping[str, Encoder] = {
    "bert": Encoder(classes("Bert"), {**BERT, "pad_token_id": (0,)}),
    "roberta": Encoder(classes("Roberta"), {**BERT, "pad_token_id": (0, 1, 3)}),
    "xlm_roberta": Encoder(classes("XLMRoberta"), {**BERT, "pad_token_id": (0, 1, 3)}),
    "nomic_bert": Encoder(
        ("NomicBertModel",),
        {
            "layer_norm_eps": EPSILONS, "max_position_embeddings": (64, 130),
            "pad_token_id": (0,), "hidden_act": ("silu",), "rope_parameters": ROPES,
        },
    ),
    "modernbert": Encoder(
        classes("ModernBert"),
        {
            "hidden_activation": ACTIVATIONS, "norm_eps": EPSILONS,
            "max_position_embeddings": (64, 130), "local_attention": (2, 8, 16, 100),
            "global_attn_every_n_layers": (1, 2, 3), "classifier_pooling": ("cls", "mean"),
            "classifier_activation": ("gelu", "silu"), "classifier_bias": (False, True),
            "attention_bias": (False, True), "mlp_bias": (False, True), "norm_bias": (False, True),
            "pad_token_id": (0,), "bos_token_id": (1,), "eos_token_id": (2,),
            "cls_token_id": (1,), "sep_token_id": (2,),
            "rope_parameters": tuple(
                {"full_attention": full, "sliding_attention": sliding}
                for full, sliding in product(ROPES, ROPES)
            ),
        },
    ),
}  # fmt: skip
# What else there is changes how text is written, or is not built for models that pool.
IMPLEMENTED = frozenset(("cpu", "cpu-avx2", "cpu-basic", "xla", "triton", "tp2"))


def drawn_encoder(family: str, number: int) -> tuple[str, Settings]:
    """The class and config with this number."""
    chosen, known = random.Random(number), ENCODERS[family]  # noqa: S311
    architecture = chosen.choice(known.architectures)
    choices = {**SHARED, **known.choices}
    settings = {key: chosen.choice(choices[key]) for key in sorted(choices)}
    head_size = chosen.choice(HEAD_SIZES)
    settings["hidden_size"] = head_size * settings["num_attention_heads"]
    return architecture, settings
