"""Whether steps return each token's experts, and whether experts are rebalanced.

In: the user's settings, and the model's config. Out: a ChosenExperts, an executor wrapper, or an
error.
"""

from __future__ import annotations

from collections.abc import Callable

from jengine.assembly.settings.combinations import refuse_together
from jengine.assembly.settings.groups import Groups
from jengine.config import ExpertsConfig, ModelConfig, ScheduleConfig
from jengine.errors import ConfigError, UnsupportedFeature
from jengine.executor.balanced_experts import BalancedExperts, SpreadExperts
from jengine.executor.protocol import Executor
from jengine.runner.variants.buckets import ChosenExperts
from sharding.placement import Placement

MOST_IN_A_BYTE = 256


def chosen_experts(
    asked: Groups, config: ModelConfig, schedule: ScheduleConfig, stages: int
) -> ChosenExperts | None:
    """How steps return each token's experts; None: they do not."""
    if not (asked.steps.enable_return_routed_experts or asked.parallel.expert_balance is not None):
        return None
    blocks = [layer.ffn for layer in config.layers if isinstance(layer.ffn, ExpertsConfig)]
    if not blocks:
        raise ConfigError(
            f"enable_return_routed_experts=True: {config.architecture} has no experts. "
            "Leave it out."
        )
    returned = asked.steps.enable_return_routed_experts
    others = {
        f"pipeline_parallel_size={stages}": stages > 1,
        f"num_scheduler_steps={schedule.num_scheduler_steps}": schedule.num_scheduler_steps > 1,
        # Loaded blocks come without the records of their tokens' experts.
        "copies of KV blocks outside of the device": returned and asked.cache.transfers is not None,
    }
    refuse_together("enable_return_routed_experts" if returned else "enable_eplb", others)
    most = max(block.num_experts for block in blocks)
    return ChosenExperts(
        len(config.layers),
        max(block.experts_per_token for block in blocks),
        "uint8" if most <= MOST_IN_A_BYTE else "uint16",
        returned=returned,
    )


def balancer_of(
    asked: Groups, config: ModelConfig, placement: Placement
) -> Callable[[Executor], Executor]:
    """Wrapper that adds expert rebalancing to an executor; the identity if it is off."""
    balance = asked.parallel.expert_balance
    if balance is None:
        return lambda executor: executor
    found = {
        layer: (one.ffn.num_experts, one.ffn.experts_per_token)
        for layer, one in enumerate(config.layers)
        if isinstance(one.ffn, ExpertsConfig)
    }
    if len(set(found.values())) > 1:
        raise UnsupportedFeature(
            f"enable_eplb: {config.architecture} has layers with different numbers of experts "
            f"{sorted(set(found.values()))}, for which moving them is not built. Leave it out."
        )
    experts, _ = next(iter(found.values()))
    spread = SpreadExperts(tuple(found), experts, placement.ways("experts"))
    returns = asked.steps.enable_return_routed_experts
    return lambda executor: BalancedExperts(executor, spread, balance, returns=returns)
