"""Tiny random models of T5's kind in Hugging Face format, and what transformers answers.

Written with transformers and torch: tests that use this are skipped without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

START, VOCAB = 0, 97
POSITIONS = 64
CONFIG: dict[str, Any] = {
    "vocab_size": VOCAB, "d_model": 32, "d_kv": 12, "d_ff": 40, "num_layers": 2,
    "num_decoder_layers": 3, "num_heads": 4, "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20, "n_positions": POSITIONS, "pad_token_id": 0,
    "eos_token_id": 1, "decoder_start_token_id": START,
}  # fmt: skip


class Kind(NamedTuple):
    """How generations of the model differ."""

    name: str  # of its classes in transformers
    feed_forward: str
    tied: bool


KINDS = {
    "v1.0": Kind("T5", "relu", True),
    "v1.1": Kind("T5", "gated-gelu", False),
    "mt5": Kind("MT5", "gated-gelu", False),
}


def write_t5(folder: Path, kind: Kind) -> Path:
    """Write a model. One whose head is not the embedding has the file that published ones have:
    transformers 5 ties heads whatever a config says, unless the file has another one."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    torch.manual_seed(3)
    more = {"feed_forward_proj": kind.feed_forward, "tie_word_embeddings": kind.tied}
    config = getattr(transformers, f"{kind.name}Config")(**CONFIG, **more)
    model = getattr(transformers, f"{kind.name}ForConditionalGeneration")(config)
    if not kind.tied:
        model.lm_head.weight = torch.nn.Parameter(torch.zeros_like(model.lm_head.weight))
    for name, parameter in model.named_parameters():
        # Large biases, and layers that say more than the embedding of the last token: so places and
        # the encoder's text decide what is said.
        wide = 2.0 if "relative" in name else 1.0 if "shared" in name else 0.25
        std = 0.4 if name.endswith(("o.weight", "v.weight")) else wide
        is_norm = "layer_norm" in name
        torch.nn.init.normal_(parameter, mean=float(is_norm), std=0.1 if is_norm else std)
    model.eval().float().save_pretrained(folder)
    return folder


@cache
def peer(folder: Path, name: str) -> Any:
    """The model in transformers."""
    transformers = pytest.importorskip("transformers")
    found = getattr(transformers, f"{name}ForConditionalGeneration").from_pretrained(folder)
    return found.eval()


def logits(model: Any, source: Sequence[int], ids: Sequence[int]) -> np.ndarray:
    """Logits after each token of a decoder's prompt, by transformers."""
    torch = pytest.importorskip("torch")
    given = torch.tensor([list(ids)])
    with torch.no_grad():
        found = model(input_ids=torch.tensor([list(source)]), decoder_input_ids=given)
    return found.logits[0].numpy()


def greedy(model: Any, source: Sequence[int], prompt: Sequence[int], count: int) -> list[int]:
    """The most likely tokens after a prompt, by transformers, without a cache."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(logits(model, source, ids)[-1].argmax()))
    return ids[len(prompt) :]
