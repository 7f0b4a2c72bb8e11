"""Limits of FlashAttention-4's kernels; calls beyond them run on Triton. Needs neither package."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

# Versions that the extra installs, the only ones accepted.
PACKAGES = {"fa4-jax": "0.1.0", "nvidia-cutlass-dsl": "4.8.1"}
CAPABILITIES = (90, 100, 103)
# Where `attention_backend="auto"` takes the kernels: every kind of layer that no rule refuses was
# found to agree with XLA on such a device (`python -m jengine.bench.gpu --stages fa4`).
PROVED = (90,)
# Block size that bulk copies read, whole blocks at a time. The kernels multiply values after a
# chunk's last key by probabilities of 0, where a NaN would spoil the outputs: `rotate_and_write`
# keeps NaN out of the cache. Small copies, for other block sizes, leave shared memory after the
# last key uninitialised.
BULK_BLOCK = 128


class PrefillCall(NamedTuple):
    """One call of prefill attention."""

    cache_dtype: np.dtype
    head_dim: int
    block_size: int
    soft_cap: float | None
    has_ends: bool


class Rule(NamedTuple):
    """One reason to run a call on Triton."""

    why: str
    holds: Callable[[PrefillCall], bool]


RULES: dict[str, Rule] = {
    "caches of codes (int8, FP8) and float32": Rule(
        "the kernels read bfloat16 and float16",
        lambda asked: asked.cache_dtype not in (jnp.bfloat16, jnp.float16),
    ),
    "heads of other sizes than 64, 96 and 128": Rule(
        "on 9.0 heads of 256 take tiles of 80 keys, which are no whole block; no kernel of another "
        "size has been compiled",
        lambda asked: asked.head_dim not in (64, 96, 128),
    ),
    "blocks of another size than 128 tokens": Rule(
        "small copies, which read them, leave shared memory behind the last key as it was, and a "
        "NaN there spoils the outputs; bulk copies read the cache there, whose values are finite",
        lambda asked: asked.block_size != BULK_BLOCK,
    ),
    "soft caps of scores": Rule(
        "a function of each score would be one more thing that a kernel is compiled for",
        lambda asked: asked.soft_cap is not None,
    ),
    "queries that attend ahead": Rule(
        "the kernels' masks are causal, with a window or without",
        lambda asked: asked.has_ends,
    ),
}
WHY_NOT_AUTO = "no device of this kind has run them yet; `attention_backend='fa4'` takes them"


def refused(asked: PrefillCall) -> str | None:
    """Name of the rule that sends this call to Triton, or None."""
    return next((name for name, rule in RULES.items() if rule.holds(asked)), None)


def missing() -> str | None:
    """What to install, or None if both packages are here in the versions that are known to work."""
    for package, version in PACKAGES.items():
        try:
            found = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return f"{package} is not installed. Install jengine[fa4], with Python 3.12 or newer."
        if found != version:
            return f"{package} is {found}; expected {version}. Install jengine[fa4]."
    return None


def device_problem(device: Any) -> str | None:
    """Why a device cannot run the kernels, or None."""
    if capability_of(device) in CAPABILITIES:
        return None
    known = ", ".join(f"{one / 10:.1f}" for one in CAPABILITIES)
    return f"the kernels are for compute capabilities {known}, not {device.device_kind}."


def unchosen(capability: int) -> str | None:
    """Why `auto` does not take the kernels on such devices, which can run them, or None."""
    return missing() or (None if capability in PROVED else WHY_NOT_AUTO)


def capability_of(device: Any) -> int:
    """90 for 9.0; 0 for other devices than NVIDIA's."""
    return round(10 * float(getattr(device, "compute_capability", None) or 0))
