"""The model that guesses for speculative decoding: read from its folder and checked.

In: the settings of speculative decoding, and the model it guesses for. Out: its declarations, its
cache specs, and its parameters in place. Must not know steps or sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from flax import nnx

from jengine.assembly.args import EngineArgs
from jengine.config import CacheSpec, ModelConfig, ScheduleConfig, SpeculativeConfig
from jengine.errors import ConfigError
from jengine.models.eagle import read_eagle
from jengine.models.medusa import read_medusa
from jengine.models.parameter import named_parameters
from jengine.runner.guesser import LoadedGuesser
from jengine.runner.step.guessers import METHODS
from jengine.runner.step.leaves import LeafOrder
from jengine.weights.abstract import NamedArray, abstract_model, with_dtype
from jengine.weights.dummy import dummy_arrays
from jengine.weights.folder import read_model_config
from jengine.weights.generation_config import read_json
from jengine.weights.resolve import resolve_model
from jengine.weights.safetensors_io import Pieces, load_params, open_model
from jengine.weights.stages import StagePlaces

Values = Iterable[NamedArray]


class GuesserSource(NamedTuple):
    """A model that guesses, before its parameters are read."""

    method: Callable[[Any], Any]  # the model -> a `step.guessing.Guesser`
    model: nnx.Module  # its declarations
    cache_specs: tuple[CacheSpec, ...]  # of its layers
    read: Callable[[StagePlaces], Values]

    def load(self, places: StagePlaces, backend: str | None, first_layer: int) -> LoadedGuesser:
        """Its parameters, prepared for steps."""
        order = LeafOrder(self.model, places, backend)
        leaves = order.leaves(self.read(places))
        return LoadedGuesser(self.method, self.model, order, leaves, first_layer)


def open_guesser(
    args: EngineArgs, config: ModelConfig, speculative: SpeculativeConfig | None
) -> GuesserSource | None:
    """The model that the settings name; None: guesses are made without one."""
    if speculative is None or speculative.model is None:
        return None
    folder = resolve_model(speculative.model).absolute()
    if speculative.method == "draft_model":
        return draft_model(args, config, folder)
    hf = read_json(folder / "config.json")
    if speculative.method == "eagle":
        eagle, pieces = read_eagle(hf, config)
        return heads_of("eagle", args, folder, eagle, pieces, eagle.config.cache_specs)
    medusa, pieces = read_medusa(hf, config)
    if len(medusa.heads) < speculative.num_speculative_tokens:
        raise ConfigError(
            f"num_speculative_tokens={speculative.num_speculative_tokens}, but {folder} has "
            f"{len(medusa.heads)} Medusa heads, each of which guesses one token."
        )
    return heads_of("medusa", args, folder, medusa, pieces, ())


def heads_of(
    method: str,
    args: EngineArgs,
    folder: Path,
    model: nnx.Module,
    pieces: Pieces,
    cache_specs: tuple[CacheSpec, ...],
) -> GuesserSource:
    """Heads on the model's hidden states, trained for this very model."""

    def read(places: StagePlaces) -> Values:
        if args.load_format == "dummy":
            return dummy_arrays(model, seed=args.seed or 0, place=places)
        return load_params(folder, model, pieces, place=places).items()

    return GuesserSource(METHODS[method], model, cache_specs, read)


def draft_model(args: EngineArgs, config: ModelConfig, folder: Path) -> GuesserSource:
    """A whole language model with the same tokenizer."""
    own = with_dtype(read_model_config(folder), config.dtype)  # one dtype for all caches
    if own.vocab_size != config.vocab_size:
        raise ConfigError(
            f"speculative_config['model']={str(folder)!r} has a vocabulary of {own.vocab_size}, "
            f"and the model one of {config.vocab_size}: expected a draft model with the same "
            "tokenizer."
        )
    declared = abstract_model(own)

    def read(places: StagePlaces) -> Values:
        if args.load_format == "dummy":
            return dummy_arrays(declared, seed=args.seed or 0, place=places)
        return open_model(folder, dtype=config.dtype, place=places)[1]

    return GuesserSource(METHODS["draft_model"], declared, own.cache_specs, read)


def with_guess_cost(
    schedule: ScheduleConfig, guesser: GuesserSource | None, config: ModelConfig
) -> ScheduleConfig:
    """The limits of a step, with what a guess costs: the share that the guesser's parameters are of
    the model's, since a step of few tokens takes as long as reading them."""
    if guesser is None or schedule.speculative is None:
        return schedule
    share = num_parameters(guesser.model) / num_parameters(abstract_model(config))
    return replace(schedule, speculative=replace(schedule.speculative, guess_cost=share))


def num_parameters(model: nnx.Module) -> int:
    """Numbers in all parameters of a model."""
    return sum(math.prod(parameter.shape) for _, parameter in named_parameters(model))
