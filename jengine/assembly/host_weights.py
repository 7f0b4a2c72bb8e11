"""CPU offload (`cpu_offload_gb`): layers that stay in host memory.

In: GiB of weights to offload from each device. Out: a placement with these layers on the host, or
an error about incompatible settings.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from flax import nnx

from jengine.assembly.settings.memory_args import CacheSettings
from jengine.config import ModelConfig
from jengine.errors import UnsupportedFeature
from jengine.models.decoder import Decoder
from jengine.runner.step.leaves import LeafOrder
from jengine.weights.abstract import abstract_model
from jengine.weights.layers_to_offload import GIB, layers_to_offload
from jengine.weights.stage_places import StagePlaces

logger = logging.getLogger(__name__)


def with_layers_on_host(
    asked: CacheSettings, config: ModelConfig, places: StagePlaces, matmuls: str | None
) -> StagePlaces:
    """Placement with as many layers in host memory as configured, after checking compatibility."""
    if not asked.cpu_offload_gb:
        return places
    if places.whole.is_cpu:
        logger.warning(
            "cpu_offload_gb=%g: the devices are CPUs, whose memory is the host's, so there is "
            "nothing to offload. All weights stay where they are.", asked.cpu_offload_gb,
        )  # fmt: skip
        return places
    return offloaded(asked.cpu_offload_gb, abstract_model(config), places, matmuls)


def offloaded(
    gib: float, model: nnx.Module, places: StagePlaces, matmuls: str | None
) -> StagePlaces:
    """Placement with enough layers in host memory."""
    refuse_other_loops(model, places)
    sizes = LeafOrder(model, places, matmuls).layer_bytes()
    chosen = layers_to_offload(sizes, gib)
    there = sum(sizes[layer] for layer in chosen)
    logger.info(
        "cpu_offload_gb=%g: %d of %d layers stay in the host's memory, %.2f GiB for each device, "
        "which copies them in every step", gib, len(chosen), len(sizes), there / GIB,
    )  # fmt: skip
    return replace(places, on_host=frozenset(chosen))


def refuse_other_loops(model: nnx.Module, places: StagePlaces) -> None:
    """Raise for models and modes that do not run layers in the shared decoder's loop, where
    offloaded layers are fetched."""
    what = ""
    if places.layout.num_stages > 1:
        what = "pipeline_parallel_size"
    elif places.whole.joint:
        what = "joint_replicas"
    elif not isinstance(model, Decoder) or type(model).through_layers is not Decoder.through_layers:
        what = f"a {type(model).__name__}"
    if what:
        raise UnsupportedFeature(
            f"cpu_offload_gb with {what}: layers in the host's memory are not built there. Leave "
            "it out; tensor_parallel_size or quantization make a model fit."
        )
