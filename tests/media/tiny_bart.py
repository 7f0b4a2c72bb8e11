"""A tiny random BART in Hugging Face format, and what transformers answers.

Written with transformers and torch: tests that use this are skipped without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

START, VOCAB = 2, 97
POSITIONS = 48
CONFIG: dict[str, Any] = {
    "vocab_size": VOCAB, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 2, "decoder_attention_heads": 4, "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40, "max_position_embeddings": POSITIONS, "init_std": 0.3,
    "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": START,
    "forced_eos_token_id": None, "scale_embedding": True,
}  # fmt: skip


def write_bart(folder: Path, forced: int | None = None) -> Path:
    """Write a model whose generation config has this `forced_bos_token_id`."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    torch.manual_seed(2)
    model = transformers.BartForConditionalGeneration(transformers.BartConfig(**CONFIG))
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:  # biases begin as zeros, weights of norms as ones
            is_scale = "norm" in name and name.endswith("weight")
            torch.nn.init.normal_(parameter, mean=float(is_scale), std=0.1)
        elif "embed_positions" in name:  # so that places and the encoder's text decide what is said
            parameter.data *= 10
        elif "encoder_attn" in name:
            parameter.data *= 4
    torch.nn.init.normal_(model.final_logits_bias, std=0.5)
    model.generation_config.forced_bos_token_id = forced
    model.eval().float().save_pretrained(folder)
    return folder


@cache
def peer(folder: Path) -> Any:
    """The model in transformers."""
    transformers = pytest.importorskip("transformers")
    return transformers.BartForConditionalGeneration.from_pretrained(folder).eval()


def logits(folder: Path, source: Sequence[int], ids: Sequence[int]) -> np.ndarray:
    """Logits after each token of a decoder's prompt, by transformers."""
    torch = pytest.importorskip("torch")
    given = torch.tensor([list(ids)])
    with torch.no_grad():
        found = peer(folder)(input_ids=torch.tensor([list(source)]), decoder_input_ids=given)
    return found.logits[0].numpy()


def greedy(folder: Path, source: Sequence[int], prompt: Sequence[int], count: int) -> list[int]:
    """The most likely tokens after a prompt, by transformers, without a cache."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(logits(folder, source, ids)[-1].argmax()))
    return ids[len(prompt) :]
