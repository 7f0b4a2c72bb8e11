"""LoRA in steps: sizes of the adapter arrays, and program variants with adapters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jengine.assembly.settings.groups import Groups
from jengine.config import ModelConfig
from jengine.errors import UnsupportedFeature
from jengine.lora.peft_files import places_of
from jengine.lora.weights import HEAD, wanted_places
from jengine.runner.runner_config import AdapterConfig
from jengine.runner.variants.features import Features, with_adapters


def adapter_config(asked: Groups, config: ModelConfig) -> AdapterConfig | None:
    """Capacity of the adapter arrays; None without adapters."""
    limits = asked.adapters
    if limits is None:
        return None
    if asked.parallel.expert_balance is not None:
        refuse_moving_experts(config, limits.target_modules)
    return AdapterConfig(
        limits.max_loras, limits.rank, limits.max_rank, limits.dtype, limits.target_modules
    )


def adapts_head(adapters: AdapterConfig | None, config: ModelConfig) -> bool:
    """Whether adapters may change the output head, which takes separate programs."""
    if adapters is None:
        return False
    places = wanted_places(places_of(config), adapters.modules)
    return any(place.path == HEAD for own in places.values() for place in own)


def refuse_moving_experts(config: ModelConfig, modules: Sequence[str] | None) -> None:
    """Raise for adapters of experts under expert load balancing."""
    places = wanted_places(places_of(config), modules)
    adapted = {name.rpartition(".")[2] for name, own in places.items() if own[0].group is not None}
    if adapted:
        raise UnsupportedFeature(
            f"enable_eplb with adapters of experts ({', '.join(sorted(adapted))}): experts move "
            "between devices, and adapters of theirs do not move with them. Give "
            "lora_target_modules without these, or leave enable_eplb out."
        )


def with_adapted(known: Mapping[str, Features], wanted: Sequence[str]) -> tuple[str, ...]:
    """Add variants with adapters: of the plain ones among the wanted, and of the most capable
    one."""
    common = [name for name in wanted if name in known and known[name].is_plain]
    last = [name for name in known if name in wanted][-1:]
    adapted = [with_adapters(name) for name in (*common, *last)]
    return (*wanted, *(name for name in adapted if name in known))
