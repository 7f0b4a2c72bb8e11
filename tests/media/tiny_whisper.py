"""A tiny random Whisper in Hugging Face format, and what transformers answers.

Written with transformers and torch: tests that use this are skipped without them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

START, VOCAB = 90, 97
POSITIONS = 50  # one second
CONFIG: dict[str, Any] = {
    "vocab_size": VOCAB, "num_mel_bins": 16, "d_model": 32, "encoder_layers": 2,
    "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_source_positions": POSITIONS,
    "max_target_positions": 64, "init_std": 0.3, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 2, "decoder_start_token_id": START, "suppress_tokens": None,
    "begin_suppress_tokens": None,
}  # fmt: skip


def write_whisper(folder: Path, **changes: Any) -> Path:
    """Write a model whose config has these changes."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    config = transformers.WhisperConfig(**{**CONFIG, **changes})
    model = transformers.WhisperForConditionalGeneration(config)
    for parameter in model.parameters():  # biases begin as zeros
        if parameter.ndim == 1 and not parameter.any():
            torch.nn.init.normal_(parameter, std=0.1)
    for name, parameter in model.named_parameters():
        if "embed_positions" in name:
            torch.nn.init.normal_(parameter)
        elif "encoder_attn" in name:  # so that audio decides what is said
            parameter.data *= 3
    model.eval().float().save_pretrained(folder)
    return folder


def extractor() -> Any:
    """The feature extractor of transformers."""
    transformers = pytest.importorskip("transformers")
    return transformers.WhisperFeatureExtractor(feature_size=16, chunk_length=1)


def greedy(folder: Path, samples: np.ndarray, prompt: list[int], count: int) -> list[int]:
    """The most likely tokens after a prompt, by transformers, without a cache."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    model = transformers.WhisperForConditionalGeneration.from_pretrained(folder).eval()
    features = extractor()(samples, sampling_rate=16000, return_tensors="pt").input_features
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            given = torch.tensor([ids])
            logits = model(input_features=features, decoder_input_ids=given).logits
            ids.append(int(logits[0, -1].argmax()))
    return ids[len(prompt) :]


def sound(seconds: float, pitch: float, rate: int = 16000) -> np.ndarray:
    """A tone that grows louder, with some noise."""
    times = np.arange(int(seconds * rate)) / rate
    noise = np.random.default_rng(int(pitch)).normal(size=len(times)) * 0.05
    return (np.sin(2 * np.pi * pitch * times) * times + noise).astype(np.float32)
