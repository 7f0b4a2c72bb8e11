"""Prompts for tiny models with encoders, by the name of the model's folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.media.tiny_bart import write_bart
from tests.media.tiny_t5 import KINDS, write_t5
from tests.media.tiny_vision import BEGIN, END, IMAGE, picture, write_vision
from tests.media.tiny_whisper import sound, write_whisper

SOURCES = [[9, 1], [0, *range(20, 40), 1], [60, 61, 1]]
SOUNDS = [sound(1.0, 220), sound(0.8, 1800), sound(0.1, 700)]
DECODED = [[5, 6, 7], [8], [*range(3, 25)]]  # after the token that starts the decoder


def write_flan(folder: Path) -> Path:
    return write_t5(folder, KINDS["v1.1"])


# Models whose decoder attends to what an encoder has read.
CROSS: dict[str, Callable[[Path], Path]] = {
    "bart": write_bart, "t5": write_flan, "whisper": write_whisper,
}  # fmt: skip


def write(folder: Path, family: str) -> Path:
    """The model, in a folder of this name."""
    own = folder / family
    return CROSS[family](own) if family in CROSS else write_vision(own, family)


def of(family: str) -> list[Any]:
    """Prompts of both parts, or with images and without."""
    if family not in CROSS:
        image = {"image": [picture(30, 50)]}
        seen = {"prompt_token_ids": [5, BEGIN, IMAGE, END, 7], "multi_modal_data": image}
        return [seen, [3, 4, 5, 6]]
    audio = [{"prompt": "", "multi_modal_data": {"audio": (one, 16000)}} for one in SOUNDS]
    sources: list[Any] = audio if family == "whisper" else SOURCES
    return [
        {"encoder_prompt": source, "decoder_prompt": {"prompt_token_ids": ids}}
        for source, ids in zip(sources, DECODED, strict=True)
    ]
