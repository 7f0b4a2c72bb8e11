"""Checks and serialises prompts given as embeddings. No jax.

In: a numpy or JAX array. Out: float32 bytes, and placeholder tokens for its rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jengine.engine.limits import Limits
from jengine.errors import ContextOverflow, RequestError
from jengine.prompts import TokensPrompt

STANDS_FOR_A_ROW = 0  # placeholder token id, valid in every vocabulary


def rendered_again(rows: bytes, ids: Any, limits: Limits) -> TokensPrompt:
    """Validate a client's already rendered embeddings prompt: its bytes and placeholder ids. Raises
    RequestError."""
    width = width_of(limits)
    count, rest = divmod(len(rows), width * np.dtype(np.float32).itemsize)
    if rest or not isinstance(ids, list) or ids != [STANDS_FOR_A_ROW] * count:
        raise RequestError(
            f"prompt_embeds are {len(rows)} bytes and prompt_token_ids do not belong to them; "
            f"expected an array [tokens, {width}] alone, or a prompt that jengine has rendered."
        )
    checked_rows(np.frombuffer(rows, np.float32).reshape(count, width), limits)
    return TokensPrompt(prompt_token_ids=ids, prompt_embeds=rows)


def width_of(limits: Limits) -> int:
    """Width of an embedding. Raises RequestError if the engine takes no prompt embeddings."""
    if limits.embeds_width is None:
        raise RequestError(
            "prompt_embeds: this engine was created without enable_prompt_embeds=True."
        )
    return limits.embeds_width


def rendered_embeds(given: Any, limits: Limits) -> TokensPrompt:
    """Build a prompt from embedding rows. Raises RequestError."""
    rows = checked_rows(given, limits)
    ids = [STANDS_FOR_A_ROW] * len(rows)
    return TokensPrompt(prompt_token_ids=ids, prompt_embeds=rows.tobytes())


def checked_rows(given: Any, limits: Limits) -> np.ndarray:
    """Convert an array of embeddings to f32[tokens, width]. Raises RequestError."""
    width = width_of(limits)
    if not hasattr(given, "shape") or not hasattr(given, "dtype"):
        raise RequestError(
            f"prompt_embeds is a {type(given).__name__}; expected an array of numpy or JAX."
        )
    shape = tuple(given.shape)
    rows = np.asarray(given)
    if len(shape) == 3 and shape[0] == 1:  # as a batch of one
        rows = rows[0]
    if rows.ndim != 2 or rows.shape[1] != width or not len(rows):
        raise RequestError(f"prompt_embeds has shape {shape}; expected [tokens, {width}].")
    if rows.dtype.kind in "iub" or rows.dtype.kind == "c":
        raise RequestError(f"prompt_embeds has dtype {rows.dtype}; expected floating point.")
    rows = np.ascontiguousarray(rows, np.float32)
    if not np.isfinite(rows).all():
        raise RequestError("prompt_embeds holds NaN or infinity; expected finite numbers.")
    if len(rows) >= limits.max_model_len:
        raise ContextOverflow(limits.max_model_len, f"contains {len(rows)} embeddings")
    most = limits.most_embeds_bytes
    if most is not None and rows.nbytes > most:
        raise RequestError(
            f"prompt_embeds takes {rows.nbytes} bytes as float32; expected at most {most} where "
            "the engine core is in another process. Leave multiprocess out, or shorten it."
        )
    return rows
