"""Settings of images and other media in prompts. No jax."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from jengine.assembly.settings.setting import CORE, RANK, WORKER, Setting


@dataclass(kw_only=True)
class MediaArgs:
    """Media in prompts."""

    # {"image": 4}
    limit_mm_per_prompt: Annotated[Mapping[str, Any] | None, Setting(
        "most images of a prompt, for a model that takes some", renamed="language_model_only"
    )] = None  # fmt: skip
    # Overrides of the model's preprocessor_config.json: {"max_pixels": 500000}.
    mm_processor_kwargs: Annotated[Mapping[str, Any] | None, Setting(
        "settings of the preprocessing of images"
    )] = None  # fmt: skip
    mm_encoder_tp_mode: Annotated[Literal["weights", "data"], Setting(
        "whether devices share the weights of the vision tower, or its images", recorded=True
    )] = "weights"  # fmt: skip
    # "": local files are refused.
    allowed_local_media_path: Annotated[str | Path, Setting(
        "folder whose files may be named by file: URLs of images", kept_from=CORE | WORKER | RANK
    )] = ""  # fmt: skip
    allowed_media_domains: Annotated[Sequence[str] | None, Setting(
        "hosts from which images may be loaded over http and https", kept_from=CORE | WORKER | RANK
    )] = None  # fmt: skip


@dataclass(frozen=True)
class MediaSettings:
    """Media in prompts: limits per kind, preprocessing, allowed sources."""

    limit_mm_per_prompt: Mapping[str, Any] | None
    mm_processor_kwargs: Mapping[str, Any] | None
    mm_encoder_tp_mode: str
    allowed_local_media_path: str | Path
    allowed_media_domains: Sequence[str] | None
