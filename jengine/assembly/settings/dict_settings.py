"""Settings that are dicts: their keys. No jax."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jengine.assembly.settings.values import one_of, switch
from jengine.errors import ConfigError, nearest_name
from pallas_kernels.xla_matmul import LIBRARIES

COMPILATION_KEYS = {
    "cache_dir": "directory of the persistent compile cache, or False for none",
    "variants": "step variants to compile in warm-up: greedy, sampled, adjusted, full, scored; "
    "greedy-scored: log-probabilities of greedy answers alone",
    "decode_rows": "ladder of decode rows",
    "prefill_tokens": "ladder of prefill tokens",
    "pages": "ladder of cache blocks a row may read",
    "patch_sizes": "ladder of patches, or tokens of texts, that the encoder takes at once",
    "encoder_tokens": "embeddings of images, or positions of audio or text, that the device keeps",
    "max_adjusted_seqs": "requests with penalties, biases or masks that may run at once",
    "capture_collectives": "whether CUDA graphs hold the collectives of several GPUs, and are "
    "recorded again at every step: true or false",
    "short_graphs": "whether CUDA graphs may hold as few as two launches, of those between the "
    "collectives of several GPUs: true or false",
    "matmuls": "the library of XLA's matmuls on GPUs: cublaslt, xla (which times cublaslt and "
    "Triton's) or auto, as measured for each size",
    "wait_for": "what is compiled before the engine is ready: all, or the largest step alone, "
    "which runs everything until the others are there",
}
PROFILER_KEYS = {
    "profiler": "'jax', or vLLM's 'torch': both record with jax.profiler",
    "dir": "folder of the traces; vLLM's torch_profiler_dir means the same",
    "torch_profiler_dir": "see dir",
}


def checked_keys(name: str, given: Any, known: Mapping[str, str]) -> None:
    """Raise ConfigError for a setting that is no mapping, or has an unknown key."""
    if given is None:
        return
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"{name}={given!r}: expected a dict with some of the keys {', '.join(known)}. "
            f"Leave {name} out if none of them is needed."
        )
    for key in given:
        if key not in known:
            raise ConfigError(
                f"{name} has no key {key!r}. Known: {', '.join(known)}."
                f"{nearest_name(str(key), known)}"
            )


def compiler_settings(given: Mapping[str, Any] | None) -> tuple[bool, str, bool]:
    """Read (capture_collectives, matmuls, short_graphs) from a compilation_config."""
    captured = (given or {}).get("capture_collectives", False)
    switch("compilation_config['capture_collectives']", captured)
    short = (given or {}).get("short_graphs", True)
    switch("compilation_config['short_graphs']", short)
    matmuls = (given or {}).get("matmuls", "auto")
    one_of("compilation_config['matmuls']", matmuls, ("auto", *LIBRARIES))
    return captured, matmuls, short
