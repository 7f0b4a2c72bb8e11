"""Validates users' media settings.

In: values as users write them. Out: validated values, or a RequestError.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jengine.config import VisionConfig
from jengine.errors import RequestError, nearest_name

KINDS = ("image", "video")
KINDS_OF_OTHERS = ("audio",)  # kinds of models without a vision tower
# Options of `mm_processor_kwargs`: common, and per family.
OPTIONS = (
    "size", "do_resize", "do_rescale", "do_normalize", "image_mean", "image_std",
    "rescale_factor", "resample",
)  # fmt: skip
OPTIONS_OF = {
    "qwen2_vl": ("min_pixels", "max_pixels", "fps"),
    "llava": ("crop_size", "do_center_crop"),
    "internvl": ("min_patches", "max_patches", "crop_to_patches"),
    "gemma3": (
        "do_pan_and_scan", "pan_and_scan_min_crop_size", "pan_and_scan_max_num_crops",
        "pan_and_scan_min_ratio_to_activate",
    ),
    "gemma4": ("max_soft_tokens",),
}  # fmt: skip


def kinds_of(vision: VisionConfig) -> tuple[str, ...]:
    """Media kinds that a model takes."""
    return KINDS if vision.frames > 1 and vision.video_token is not None else KINDS[:1]


def checked_limits(given: Mapping[str, Any] | None) -> dict[str, int]:
    """Validate `limit_mm_per_prompt`; of vLLM's nested form only `count` is used."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise RequestError(
            f"limit_mm_per_prompt={given!r}: expected a dict such as {{'image': 4}}."
        )
    limits = {
        kind: most.get("count", most) if isinstance(most, Mapping) else most
        for kind, most in given.items()
    }
    for kind, most in limits.items():
        if kind not in (*KINDS, *KINDS_OF_OTHERS) or type(most) is not int or most < 0:
            raise RequestError(
                f"limit_mm_per_prompt has {kind!r}: {most!r}; expected a number for "
                f"{' or '.join(map(repr, KINDS))}."
            )
    return limits


def checked_options(given: Mapping[str, Any] | None, family: str) -> dict[str, Any]:
    """Validate `mm_processor_kwargs` for this family."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise RequestError(f"mm_processor_kwargs is a {type(given).__name__}; expected a dict.")
    known = (*OPTIONS, *OPTIONS_OF[family])
    for name in given:
        if name not in known:
            raise RequestError(
                f"mm_processor_kwargs has no key {name!r} for models whose images are processed as "
                f"those of {family!r}; known: {', '.join(known)}.{nearest_name(str(name), known)}"
            )
    return dict(given)
