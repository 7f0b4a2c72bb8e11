"""Translates Tunix's settings: RolloutConfig, seeds and tokenizers to those of jengine.

In: a RolloutConfig. Out: settings of an LLM, SamplingParams, keys. Must not import Tunix.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jengine.api.llm import LLM
from jengine.errors import ConfigError, RequestError, UnsupportedFeature
from jengine.sampling_params import SamplingParams

if TYPE_CHECKING:
    # pyrefly: ignore [missing-import]
    from tunix.rl.rollout.base_rollout import RolloutConfig


def settings_from(config: RolloutConfig | None, mesh: Any) -> dict[str, Any]:
    """The LLM settings that follow from a RolloutConfig and a mesh."""
    settings: dict[str, Any] = {"logprobs_mode": "processed_logprobs", "mesh": mesh}
    if config is None:
        return settings
    if config.rollout_mapping_config is not None:
        raise UnsupportedFeature(
            "rollout_mapping_config leads to Hugging Face names; give JengineRollout a mapping to"
            " jengine's instead, such as jengine.integrations.tunix_models.dense_decoder."
        )
    if config.expert_parallel_size not in (-1, 1):
        if config.expert_parallel_size != config.tensor_parallel_size:
            raise UnsupportedFeature(
                f"expert_parallel_size={config.expert_parallel_size}: experts are spread over the "
                f"devices of tensor_parallel_size={config.tensor_parallel_size}; give the same "
                "number, or 1 or -1."
            )
        settings["enable_expert_parallel"] = True
    for name in ("tensor_parallel_size", "data_parallel_size"):
        if getattr(config, name) != -1:
            settings[name] = getattr(config, name)
    if config.data_type is not None:
        settings["dtype"] = jnp.dtype(config.data_type)
    return {**settings, "max_model_len": config.kv_cache_size}


def check_llm(llm: LLM, tokenizer: Any, mesh: Any) -> None:
    """Refuse an engine whose tokenizer or devices differ from the trainer's."""
    both = [one for one in (tokenizer, llm.get_tokenizer()) if one is not None]
    facts = [(len(one), one.eos_token_id, one.pad_token_id) for one in both]
    if len(set(facts)) > 1:
        raise ConfigError(
            "the trainer's tokenizer and the llm's differ in (size, EOS, padding):"
            f" {facts[0]} and {facts[1]}. Make the llm with tokenizer=the trainer's."
        )
    if mesh is not None and set(mesh.devices.flat) != set(llm.mesh.devices.flat):
        raise ConfigError(
            f"the llm is on {llm.mesh.devices.tolist()}, and the trainer's rollout mesh is"
            f" {mesh.devices.tolist()}. Make the llm with mesh=that mesh."
        )


def sampling_params(config: RolloutConfig, **given: Any) -> SamplingParams:
    """The SamplingParams of a RolloutConfig."""
    settings: dict[str, Any] = {
        "max_tokens": config.max_tokens_to_generate,
        "temperature": config.temperature,
        "top_p": 1.0 if config.top_p is None else config.top_p,
        "top_k": 0 if config.top_k is None else config.top_k,
        "logprobs": 0 if config.return_logprobs else None,
        "flat_logprobs": config.return_logprobs,
    }
    if config.eos_tokens is not None:
        # These alone end an answer.
        settings |= {"stop_token_ids": list(config.eos_tokens), "ignore_eos": True}
    return SamplingParams(**{**settings, **given})


def as_key(seed: Any) -> jax.Array | None:
    """A jax key from Tunix's seed: an old-style or new-style key, or an integer."""
    if seed is None:
        return None
    if isinstance(seed, jax.Array) and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
        return seed
    if np.shape(seed) == (2,) and np.asarray(seed).dtype == np.uint32:
        return jax.random.wrap_key_data(jnp.asarray(seed))
    if np.shape(seed) == () and np.issubdtype(np.asarray(seed).dtype, np.integer):
        return jax.random.key(int(seed))
    raise RequestError(f"seed={seed!r}: expected a jax key or an integer.")


def hugging_face(tokenizer: Any) -> Any:
    """The transformers tokenizer inside Tunix's adapter, or the one given."""
    is_adapter = type(tokenizer).__module__.startswith("tunix.")
    return tokenizer.tokenizer if is_adapter else tokenizer
