"""Settings of statistics, traces, progress and the flight recorder. No jax."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from jengine.assembly.settings.checked_args import check_profiler
from jengine.assembly.settings.setting import CORE, RANK, SERVER, WORKER, Setting
from jengine.assembly.settings.values import share


@dataclass(kw_only=True)
class WatchArgs:
    """Statistics, traces, progress and recordings."""

    disable_log_stats: Annotated[bool, Setting(
        "log figures while running", kept_from=CORE | WORKER
    )] = True  # fmt: skip
    kv_cache_metrics: Annotated[bool, Setting(
        "measure how long blocks stay in the KV cache", kept_from=WORKER
    )] = False  # fmt: skip
    kv_cache_metrics_sample: Annotated[float, Setting(
        "share of the blocks that are measured", kept_from=WORKER,
        check=partial(share, "kv_cache_metrics_sample")
    )] = 0.01  # fmt: skip
    otlp_traces_endpoint: Annotated[str | None, Setting(
        "URL of a collector for traces, such as http://host:4318/v1/traces",
        kept_from=CORE | WORKER | RANK
    )] = None  # fmt: skip
    show_progress: Annotated[bool | None, Setting(
        "show no progress bars",
        renamed="use_tqdm_on_load", kept_from=CORE | WORKER | RANK | SERVER
    )] = None  # fmt: skip
    # A folder: the last steps are kept in memory, and written there when a step fails or by
    # llm.write_recording(); `jengine replay` runs them again. Recordings contain prompts and
    # outputs.
    flight_recorder: Annotated[str | Path | None, Setting(
        "folder for recordings of steps, which hold prompts and answers", kept_from=WORKER
    )] = None  # fmt: skip
    flight_recorder_steps: Annotated[int, Setting(
        "steps that a recording holds at most", size=True, kept_from=WORKER
    )] = 1024  # fmt: skip
    # start_profile() writes there: {"profiler": "jax", "dir": folder}.
    profiler_config: Annotated[Mapping[str, Any] | None, Setting(check=check_profiler)] = None

    @property
    def measured_blocks(self) -> float:
        """Share of KV cache blocks whose residency is measured."""
        return self.kv_cache_metrics_sample if self.kv_cache_metrics else 0.0

    @property
    def profile_folder(self) -> str | None:
        """Directory for traces; None if `profiler_config` names none."""
        config = self.profiler_config or {}
        return config.get("dir") or config.get("torch_profiler_dir")


@dataclass(frozen=True)
class WatchSettings:
    """Progress display and flight recorder."""

    show_progress: bool | None
    flight_recorder: str | Path | None
    flight_recorder_steps: int
    recorded: Mapping[str, Any]
