"""Settings of the scheduler and of speculative decoding. No jax."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from jengine.assembly.settings.setting import Setting
from jengine.config import SpeculativeConfig
from jengine.scheduler.orders import order_of
from jengine.speculative.config import speculative_config


@dataclass(kw_only=True)
class ScheduleArgs:
    """Scheduling and speculative decoding."""

    enable_chunked_prefill: Annotated[bool, Setting(
        "run each prompt in one piece", recorded=True, commands="simulate"
    )] = True  # fmt: skip
    long_prefill_token_threshold: Annotated[int, Setting(
        "prompts longer than this are run in pieces of this size"
    )] = 0  # fmt: skip
    scheduling_policy: Annotated[str, Setting(
        "which request runs first: fcfs, priority, or package.module:Class", check=order_of
    )] = "fcfs"  # fmt: skip
    overlap: Annotated[bool, Setting(
        "end a step before the next is prepared", renamed="async_scheduling"
    )] = True  # fmt: skip
    num_scheduler_steps: Annotated[int, Setting(
        "decode steps in one call of the device while no request waits", recorded=True
    )] = 1  # fmt: skip
    # {"method": "ngram", "num_speculative_tokens": 4}
    speculative_config: Annotated[Mapping[str, Any] | None, Setting(
        "JSON with vLLM's keys, or --speculative-config.KEY VALUE: draft several tokens of a "
        "row for one step, with method ngram, suffix, draft_model, eagle, eagle3, medusa or mtp",
        short="-sc", recorded=True, check=speculative_config
    )] = None  # fmt: skip

    @property
    def drafts(self) -> SpeculativeConfig | None:
        """Parsed `speculative_config`; None without speculative decoding."""
        given = self.speculative_config
        return None if given is None else speculative_config(given)


@dataclass(frozen=True)
class ScheduleSettings:
    """Limits of a step and of concurrent requests."""

    max_model_len: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    enable_chunked_prefill: bool
    long_prefill_token_threshold: int
    scheduling_policy: str
    num_scheduler_steps: int
    overlap: bool
    drafts: SpeculativeConfig | None
