"""Logits processors for tests, which other processes can import."""

from __future__ import annotations

import sys
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from jengine import AdapterLogitsProcessor, BatchUpdate, LogitsProcessor, SamplingParams
from jengine.logits_processor import ProcessorConfig, process_dict_updates


def only_seven(logits: Array) -> Array:
    """Token 7, whatever the model says."""
    return jnp.full_like(logits, -jnp.inf).at[7].set(0.0)


def halved(logits: Array) -> Array:
    """As at twice the temperature."""
    return logits / 2


def count_up(ids: Array, logits: Array) -> Array:
    """The token after the last one, by number."""
    wanted = (ids[-1] + 1) % logits.shape[0]
    return jnp.where(jnp.arange(logits.shape[0]) == wanted, 0.0, -jnp.inf)


class OnTheHost:
    """Not derived from the class of processors that run on the host."""

    def apply(self, logits: Array) -> Array:
        return logits


class OneToken(LogitsProcessor):
    """The example of vLLM's documentation: `extra_args["target_token"]` is every token."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        token = (sampling_params.extra_args or {}).get("target_token")
        if token is not None and not isinstance(token, int):
            raise ValueError(f"target_token is {token!r}, expected an integer")

    def __init__(self, vllm_config: ProcessorConfig, device: str, is_pin_memory: bool) -> None:
        assert vllm_config.model_config.get_vocab_size() > 7
        self.tokens: dict[int, int] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(
            self.tokens,
            batch_update,
            lambda params, prompt, output: (params.extra_args or {}).get("target_token"),
        )

    def apply(self, logits: np.ndarray) -> np.ndarray:
        for place, token in self.tokens.items():
            kept = logits[place, token]
            logits[place] = -np.inf
            logits[place, token] = kept
        return logits


class CountUp(AdapterLogitsProcessor):
    """The token after the last one, by number, for requests with `extra_args["counts"]`."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        return self.next_one if (params.extra_args or {}).get("counts") else None

    @staticmethod
    def next_one(prompt: list[int], output: list[int], logits: np.ndarray) -> np.ndarray:
        wanted = ([*prompt, *output][-1] + 1) % len(logits)
        return np.where(np.arange(len(logits)) == wanted, np.float32(0), -np.inf)


class NoTransformers(AdapterLogitsProcessor):
    """Fails in a process that has imported transformers."""

    def is_argmax_invariant(self) -> bool:
        return True

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        assert "transformers" not in sys.modules
        return None


class SharperDraws(AdapterLogitsProcessor):
    """The best token alone, for requests with `extra_args["sharp"]`."""

    def is_argmax_invariant(self) -> bool:
        return True

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        return self.best if (params.extra_args or {}).get("sharp") else None

    @staticmethod
    def best(output: list[int], logits: np.ndarray) -> np.ndarray:
        return np.where(logits == logits.max(), logits, -np.inf)


class Crooked(OneToken):
    """Returns too few columns."""

    def apply(self, logits: np.ndarray) -> np.ndarray:
        return logits[:, :3]
