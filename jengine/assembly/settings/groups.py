"""The settings of an engine in small frozen groups, as other rooms take them. No jax.

In: EngineArgs. Out: Groups. Each field has the name of a setting, or of a property of EngineArgs.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import get_type_hints

from jengine.adapters import AdapterLimits
from jengine.assembly.settings.media_args import MediaSettings
from jengine.assembly.settings.memory_args import CacheSettings
from jengine.assembly.settings.model_args import ModelSettings
from jengine.assembly.settings.parallel_args import ParallelSettings
from jengine.assembly.settings.schedule_args import ScheduleSettings
from jengine.assembly.settings.step_args import StepSettings
from jengine.assembly.settings.watch_args import WatchSettings


@dataclass(frozen=True)
class Groups:
    """All groups, for code that reads several."""

    model: ModelSettings
    parallel: ParallelSettings
    cache: CacheSettings
    schedule: ScheduleSettings
    steps: StepSettings
    media: MediaSettings
    watch: WatchSettings
    adapters: AdapterLimits | None  # None: LoRA is off

    def in_use(self, *names: str) -> dict[str, bool]:
        """For refusals of combinations: the features in `names` -> whether each is in use.

        Keys are worded as in messages ("strict=True"). `executor` is in use if its workers are
        other processes.
        """
        steps, parallel = self.steps, self.parallel
        words = {
            "executor": f"executor={parallel.executor!r}",
            "data_parallel_backend": f"data_parallel_backend={parallel.data_parallel_backend!r}",
            "num_scheduler_steps": f"num_scheduler_steps={self.schedule.num_scheduler_steps}",
            "strict": "strict=True",
            "deterministic": "deterministic=True",
        }
        used = {
            "executor": parallel.executor not in ("auto", "local"),
            "data_parallel_backend": parallel.data_parallel_backend != "local",
            "num_scheduler_steps": self.schedule.num_scheduler_steps > 1,
            "speculative_config": self.schedule.drafts is not None,
            "strict": steps.strict,
            "deterministic": steps.deterministic,
            "enable_lora": self.adapters is not None,
            "enable_prompt_embeds": steps.enable_prompt_embeds,
            "enable_sleep_mode": steps.enable_sleep_mode,
            "enable_expert_parallel": parallel.enable_expert_parallel,
            "enable_return_routed_experts": steps.enable_return_routed_experts,
            "joint_replicas": parallel.joint_replicas,
            "decode_context_parallel_size": parallel.decode_context_parallel_size > 1,
        }
        return {words.get(name, name): used[name] for name in names}


def groups_of(settings: object, adapters: AdapterLimits | None) -> Groups:
    """Copy attributes of `settings` into the groups' fields of the same name."""
    kinds = {name: kind for name, kind in get_type_hints(Groups).items() if name != "adapters"}
    made = {
        name: kind(**{one.name: getattr(settings, one.name) for one in fields(kind)})
        for name, kind in kinds.items()
    }
    return Groups(**made, adapters=adapters)
