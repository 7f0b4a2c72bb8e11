"""Loads the draft model or heads of speculative decoding.

In: speculative settings, and the target model. Out: declarations, cache specs, and placed
parameters. Must not know steps or sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from flax import nnx

from jengine.assembly.model_facts import ModelSource
from jengine.assembly.mtp_layer import Stored, mtp_layer
from jengine.assembly.settings.model_args import ModelSettings
from jengine.config import CacheSpec, ModelConfig, ScheduleConfig, SpeculativeConfig
from jengine.errors import CheckpointError, ConfigError
from jengine.models.draft_heads.eagle import read_eagle
from jengine.models.draft_heads.eagle3_file import OFFSETS, PLACES, read_eagle3
from jengine.models.draft_heads.heads import DraftHeads
from jengine.models.draft_heads.medusa import Medusa, read_medusa
from jengine.models.language_model import LanguageModel
from jengine.runner.loaded_drafter import LoadedDrafter
from jengine.runner.step.drafters import METHODS, ParallelDraftModel
from jengine.runner.step.leaves import LeafOrder
from jengine.weights.abstract import NamedArray, abstract_model, with_dtype
from jengine.weights.draft_places import DraftPlaces
from jengine.weights.dummy import dummy_arrays
from jengine.weights.folder import open_checkpoint, read_model_config
from jengine.weights.generation_config import read_json
from jengine.weights.prepared import parameter_count
from jengine.weights.resolve import resolve_model
from jengine.weights.safetensors_file import StoredTensor
from jengine.weights.safetensors_io import Tensors, check_tensors, open_model, stream
from jengine.weights.stage_places import StagePlaces

# Fixed cost of a step, as parameters that could be read in that time; negligible for models of a
# useful size.
OF_A_STEP = 2_000_000
# config.json keys of the mask token of parallel drafting.
MASK_KEYS = ("pard_token", "ptd_token_id")
READERS = {"eagle": read_eagle, "eagle3": read_eagle3, "medusa": read_medusa}
Values = Iterable[NamedArray]


class DrafterSource(NamedTuple):
    """A drafter before its parameters are read."""

    method: Callable[[Any], Any]  # target model -> a `step.draft_stage.Drafter`
    model: nnx.Module  # declarations
    cache_specs: tuple[CacheSpec, ...]  # of its layers
    read: Callable[[StagePlaces], Values]
    points: tuple[str, ...] = ()  # tap points of the target that it reads

    def load(
        self,
        places: StagePlaces,
        backend: str | None,
        first_layer: int,
        noted: Callable[[Values], Values],
    ) -> LoadedDrafter:
        """Load and prepare the drafter's parameters. `noted` wraps the values as they are read."""
        order = LeafOrder(self.model, places, backend)
        leaves = order.leaves(noted(self.read(places)))
        return LoadedDrafter(self.method, self.model, order, leaves, first_layer, self.points)


def open_drafter(
    asked: ModelSettings, source: ModelSource, speculative: SpeculativeConfig | None
) -> DrafterSource | None:
    """The configured draft model or heads; None for host proposers."""
    if speculative is None or not speculative.on_device:
        return None
    config = source.config
    if speculative.model is not None:
        folder = resolve_model(speculative.model).absolute()
    elif source.folder is not None:
        folder = source.folder
    else:
        raise ConfigError(
            f"speculative_config with method={speculative.method!r} for a live model: expected "
            "model, the folder that holds the layer that drafts."
        )
    if speculative.method == "draft_model":
        return draft_model(asked, config, folder, speculative)
    stored: Stored = {} if asked.load_format == "dummy" else open_checkpoint(folder)
    tensors: Tensors = stored
    hf = read_json(folder / "config.json")
    if speculative.method == "mtp":
        heads, tensors = mtp_layer(folder, hf, config, stored)
    else:
        heads = READERS[speculative.method](hf, config, tensors)
    most = speculative.num_speculative_tokens
    if isinstance(heads.model, Medusa) and len(heads.model.heads) < most:
        raise ConfigError(
            f"num_speculative_tokens={most}, but {folder} has "
            f"{len(heads.model.heads)} Medusa heads, each of which drafts one token."
        )
    return heads_of(speculative.method, asked, folder, heads, tensors)


def heads_of(
    method: str, asked: ModelSettings, folder: Path, heads: DraftHeads, tensors: Tensors
) -> DrafterSource:
    """Draft heads trained for this model."""
    if PLACES in {piece.name for found in heads.pieces.values() for piece in found}:
        tensors = with_places(folder, heads, tensors)

    def read(places: StagePlaces) -> Values:
        if asked.load_format == "dummy":
            return dummy_arrays(heads.model, seed=asked.seed or 0, place=places)
        check_tensors(folder, tensors, heads.pieces, heads.ignored)
        return stream(tensors, heads.model, heads.pieces, places)

    return DrafterSource(METHODS[method], heads.model, heads.cache_specs, read, heads.points)


def with_places(folder: Path, heads: DraftHeads, tensors: Tensors) -> Tensors:
    """The tensors of a head; offsets of a reduced vocabulary are converted to a lookup."""
    if not tensors:  # random weights
        return tensors
    offsets = tensors.get(OFFSETS)
    if not isinstance(offsets, StoredTensor):
        raise CheckpointError(
            f"{folder}: draft_vocab_size is less than the model's vocabulary, but there is no "
            f"{OFFSETS!r} that says which tokens the head knows."
        )
    [(piece, *_)] = [found for found in heads.pieces.values() if found[0].name == PLACES]
    rest = {name: one for name, one in tensors.items() if name != OFFSETS}
    return {**rest, PLACES: DraftPlaces(PLACES, offsets, piece.shape[0])}


def draft_model(
    asked: ModelSettings, config: ModelConfig, folder: Path, speculative: SpeculativeConfig
) -> DrafterSource:
    """A separate language model with the same tokenizer."""
    own = with_dtype(read_model_config(folder), config.dtype)  # all caches have one dtype
    if own.vocab_size != config.vocab_size:
        raise ConfigError(
            f"speculative_config['model']={str(folder)!r} has a vocabulary of {own.vocab_size}, "
            f"and the model one of {config.vocab_size}: expected a draft model with the same "
            "tokenizer."
        )
    declared = abstract_model(own)

    def read(places: StagePlaces) -> Values:
        if asked.load_format == "dummy":
            return dummy_arrays(declared, seed=asked.seed or 0, place=places)
        return open_model(folder, dtype=config.dtype, place=places)[1]

    method = METHODS["draft_model"]
    if speculative.parallel_drafting:
        method = partial(ParallelDraftModel, mask=mask_token(folder, config.vocab_size))
    return DrafterSource(method, declared, own.cache_specs, read)


def mask_token(folder: Path, vocab_size: int) -> int:
    """Mask token of a draft model that drafts in one pass. Raises CheckpointError without one."""
    hf = read_json(folder / "config.json")
    found = next((hf[name] for name in MASK_KEYS if hf.get(name) is not None), None)
    if type(found) is not int or not 0 <= found < vocab_size:
        raise CheckpointError(
            f"{folder}: speculative_config has parallel_drafting, but config.json has "
            f"{' or '.join(MASK_KEYS)} = {found!r}: expected a token id below {vocab_size}, as "
            "models have that were trained to draft in one pass. Leave parallel_drafting out for "
            "others."
        )
    return found


def with_draft_cost(
    schedule: ScheduleConfig, drafter: DrafterSource | None, config: ModelConfig
) -> ScheduleConfig:
    """Set the cost of a draft: parameters read per draft relative to the model's, as small steps
    are bound by reading weights."""
    if drafter is None or schedule.speculative is None:
        return schedule
    step = numbers_read(abstract_model(config)) + OF_A_STEP
    share = numbers_of_a_draft(drafter.model, config) / step
    if schedule.speculative.parallel_drafting:
        share /= schedule.speculative.num_speculative_tokens
    return replace(schedule, speculative=replace(schedule.speculative, draft_cost=share))


def numbers_of_a_draft(model: nnx.Module, config: ModelConfig) -> float:
    """Number of parameters read per additional draft."""
    if isinstance(model, Medusa):
        return numbers_read(model) / len(model.heads)
    if isinstance(model, LanguageModel) or getattr(model, "head", None) is not None:
        return numbers_read(model)
    return numbers_read(model) + config.vocab_size * config.hidden_size  # the target's head


def numbers_read(model: nnx.Module) -> int:
    """Number of parameters read per step; embeddings that are only looked up do not count."""
    numbers = parameter_count(model)
    embed = getattr(model, "embed", None)
    if embed is None or embed.is_head:
        return numbers
    return numbers - math.prod(embed.shape.shape)
