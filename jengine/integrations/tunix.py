"""JengineRollout: jengine as the rollout engine of Tunix's RL trainers (google-tunix).

In: prompts and a RolloutConfig, or a trainer's parameters. Out: Tunix's RolloutOutput, scores, new
weights. Tunix takes the class or a functools.partial of it:
ClusterConfig(rollout_engine=partial(JengineRollout, model=folder, mapping=dense_decoder), ...).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jengine.api.arrays import finished, row_seeds
from jengine.api.llm import LLM
from jengine.errors import ConfigError, RequestError, UnsupportedFeature
from jengine.integrations.tunix_settings import (
    as_key,
    check_llm,
    hugging_face,
    sampling_params,
    settings_from,
)
from jengine.weights.live import named_arrays

try:
    # pyrefly: ignore [missing-import]
    from tunix.rl.rollout.base_rollout import BaseRollout, RolloutConfig, RolloutOutput
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"jengine.integrations.tunix needs Tunix ({error}). Run: pip install google-tunix"
    ) from error

# A trainer's parameters -> jengine's, by dotted path.
ParameterMapping = Callable[[Any], Any]


class JengineRollout(BaseRollout):
    """Generates, scores and takes over new weights through one LLM in this process.

    Give an `llm`, which takes over the actor's parameters, or what makes one: `model` (a folder),
    with the actor's parameters in place of the folder's, or nothing, where the actor is a jengine
    module itself. `mapping` turns the trainer's parameters into jengine's; without it they must
    have jengine's names. Other keywords are settings of the LLM; its `max_model_len` is Tunix's
    `kv_cache_size`. Settings of RolloutConfig that begin with another engine's name are that
    engine's.

    Log-probabilities are those of the distribution that was sampled from (temperature applied), as
    Tunix's other engines return them, and of the model itself in `get_per_token_logps`.
    """

    def __init__(
        self,
        rollout_actor: Any = None,
        tokenizer: Any = None,
        mesh: Any = None,
        rollout_config: RolloutConfig | None = None,
        *,
        llm: LLM | None = None,
        model: str | Path | None = None,
        mapping: ParameterMapping | None = None,
        **settings: Any,
    ) -> None:
        if llm is not None and (model is not None or settings):
            raise ConfigError("an llm is complete: leave model and its settings out, or the llm.")
        self._mapping = mapping
        wanted = settings_from(rollout_config, mesh)
        if llm is None:
            actor, tokenizer = rollout_actor, hugging_face(tokenizer)
            self.llm = self._build(actor, tokenizer, model, {**wanted, **settings})
        else:
            check_llm(llm, hugging_face(tokenizer), mesh)
            self.llm = llm
            if rollout_actor is not None:
                self.update_params(rollout_actor)
        self._tokenizer = self.llm.get_tokenizer()

    def _build(
        self, actor: Any, tokenizer: Any, model: str | Path | None, settings: dict[str, Any]
    ) -> LLM:
        if model is None and actor is None:
            raise ConfigError("give an llm, a model folder, or a jengine module as rollout_actor.")
        settings = {"tokenizer": tokenizer, **settings}
        if model is None:
            return LLM(actor, **settings)
        if actor is not None:
            params = self._ours(actor)
            # The trainer's own type unless another is asked for.
            dtype = settings.setdefault("dtype", next(iter(params.values())).dtype)
            settings["params"] = cast(params, dtype)
        return LLM(model, **settings)

    # --- Tunix's protocol --------------------------------------------------------------------

    def generate(
        self, prompts: list[str], rollout_config: RolloutConfig, **sampling: Any
    ) -> RolloutOutput:
        """Answer each prompt. Further keywords are those of SamplingParams.

        With `seed` the answers depend on it and on the prompt's place in the list alone: give a new
        key for each batch. Prompts longer than `max_prompt_length` are refused, not cut.
        """
        rows = [self._encode(prompt) for prompt in prompts]
        check_prompts(rows, rollout_config.max_prompt_length, self.pad_id())
        base = sampling_params(rollout_config, **sampling)
        seeds = row_seeds(as_key(rollout_config.seed), len(rows))
        params = [base.clone(seed=seed) for seed in seeds]
        outputs = self.llm.generate(rows, params, use_tqdm=False)
        answers = [finished(output).outputs[0] for output in outputs]
        with_logprobs = rollout_config.return_logprobs
        return RolloutOutput(
            text=[answer.text for answer in answers],
            logits=None,  # a vocabulary for each token; Tunix's learners do not read them
            tokens=[answer.tokens for answer in answers],
            left_padded_prompt_tokens=left_padded(
                rows, rollout_config.max_prompt_length, self.pad_id()
            ),
            logprobs=[answer.logprobs_array for answer in answers] if with_logprobs else None,
        )

    def get_per_token_logps(
        self,
        prompt_tokens: jax.Array,
        completion_tokens: jax.Array,
        completion_mask: jax.Array | None = None,
    ) -> jax.Array:
        """log p of each completion token under the weights in use, f32 [B, completion]; 0 beyond.

        Prompts are padded at the left, completions at the right. Without a mask a completion ends
        one token after its last one that is not padding: where EOS is also the padding, that token
        is the EOS.
        """
        starts, completions = np.asarray(prompt_tokens), np.asarray(completion_tokens)
        prompts = [row[first_real(row, self.pad_id()) :] for row in starts]
        lengths = completion_lengths(completions, completion_mask, self.pad_id())
        rows = [
            [*prompt.tolist(), *completion[:length].tolist()]
            for prompt, completion, length in zip(prompts, completions, lengths, strict=True)
        ]
        scores = np.asarray(self.llm.compute_logprobs(rows))
        result = np.zeros(completions.shape, np.float32)
        for row, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
            result[row, :length] = scores[row, len(prompt) : len(prompt) + length]
        return jnp.asarray(result)

    def update_params(self, params: Any, filter_types: tuple[Any, ...] | None = None) -> None:
        """Sample from these parameters from now on. Nothing is compiled; requests finish first.

        Given as a module, an nnx.State or a tree; `filter_types` chooses among a state's variables.
        Values of another float type are cast to the engine's.
        """
        params = filtered(params, filter_types)
        self.llm.update_params(cast(self._ours(params), jnp.dtype(self.llm.engine.model.dtype)))

    def pad_id(self) -> int:
        """The padding token of prompts and completions; EOS without one."""
        pad = self._tokenizer.pad_token_id
        return self.eos_id() if pad is None else pad

    def eos_id(self) -> int:
        """The token that ends a text."""
        eos = self._tokenizer.eos_token_id
        if eos is None:
            raise ConfigError("this tokenizer has no EOS token; set tokenizer.eos_token.")
        return eos

    def model(self) -> None:
        """None: the engine shares no module with the trainer, so Tunix always syncs the weights."""

    # --- how it is done ----------------------------------------------------------------------

    def _ours(self, params: Any) -> dict[str, Any]:
        return named_arrays(params if self._mapping is None else self._mapping(params))

    def _encode(self, prompt: str) -> list[int]:
        """Token ids; a chat template may have written the BOS that the tokenizer adds as well."""
        tokenizer = self.llm.engine.tokenizer
        assert tokenizer is not None, "checked when this was made"
        ids, bos = tokenizer.encode(prompt), self._tokenizer.bos_token_id
        while bos is not None and ids[:2] == [bos, bos]:
            ids = ids[1:]
        return ids


def filtered(params: Any, filter_types: tuple[Any, ...] | None) -> Any:
    """The variables of these types."""
    if filter_types is None:
        return params
    if nnx.LoRAParam in filter_types:
        raise UnsupportedFeature(
            "only the LoRA parameters are synced: merge them into the model and sync all of its"
            " parameters, or sample with an engine of enable_lora=True and llm.add_lora(request,"
            " matrices), whose names are PEFT's or those of our weights."
        )
    if isinstance(params, nnx.Module):
        return nnx.state(params, filter_types)
    return nnx.filter_state(params, filter_types) if isinstance(params, nnx.State) else params


def cast(params: dict[str, Any], dtype: Any) -> dict[str, Any]:
    """Float arrays in this type; those that have it already are not copied."""
    return {
        path: array.astype(dtype)
        if array.dtype != dtype and jnp.issubdtype(array.dtype, jnp.floating)
        else array
        for path, array in params.items()
    }


def check_prompts(rows: Sequence[list[int]], longest: int, pad: int) -> None:
    """Refuse prompts that a trainer would see cut, or with a masked beginning."""
    for number, row in enumerate(rows):
        if len(row) > longest:
            raise RequestError(
                f"prompt {number} has {len(row)} tokens, max_prompt_length is {longest}. Raise it,"
                " or leave such prompts out of the data."
            )
        if row[:1] == [pad]:
            raise RequestError(
                f"prompt {number} begins with token {pad}, which is also the padding, so the"
                " trainer would not see it. Give the tokenizer a pad_token of its own."
            )


def left_padded(rows: Sequence[list[int]], width: int, pad: int) -> np.ndarray:
    """i32 [rows, width], each row at the right end."""
    table = np.full((len(rows), width), pad, np.int32)
    for filled, row in zip(table, rows, strict=True):
        filled[width - len(row) :] = row
    return table


def first_real(row: np.ndarray, pad: int) -> int:
    """The index at which a left-padded prompt begins."""
    real = np.flatnonzero(row != pad)
    if not len(real):
        raise RequestError(f"a prompt holds only padding ({pad}); it needs one token or more.")
    return int(real[0])


def completion_lengths(completions: np.ndarray, mask: Any, pad: int) -> list[int]:
    """The number of tokens of each right-padded completion to score."""
    if mask is not None:
        counted = np.asarray(mask).astype(bool)
        return [int(np.max(np.flatnonzero(row), initial=-1)) + 1 for row in counted]
    ends = [int(np.max(np.flatnonzero(row != pad), initial=-1)) + 2 for row in completions]
    return [min(end, completions.shape[1]) for end in ends]
