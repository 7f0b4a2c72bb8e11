"""The settings of one load, under the names of `vllm bench serve`'s flags.

In: what the user gave. Out: checked settings. Must not import numpy: help is made from here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jengine.assembly.settings.flags import flag_of
from jengine.errors import ConfigError

COMPLETIONS, CHAT = "openai", "openai-chat"
BACKENDS = {COMPLETIONS: "/v1/completions", "vllm": "/v1/completions", CHAT: "/v1/chat/completions"}
DATASET_NAMES = ("random", "prefix_repetition", "multi_turn", "custom")
METRICS = ("ttft", "tpot", "itl", "e2el", "client_queue_time", "e2el_including_client_queue")
OBJECTIVES = ("ttft", "tpot", "e2el")
# The least that a number may be, and those that must be above it.
LEAST = {
    **dict.fromkeys(("num_prompts", "random_input_len", "random_output_len", "max_concurrency"), 1),
    **dict.fromkeys(("prefix_repetition_num_prefixes", "prefix_repetition_output_len"), 1),
    **dict.fromkeys(("multi_turn_num_turns", "ramp_up_start_rps", "ramp_up_end_rps"), 1),
    **dict.fromkeys(("prefix_repetition_prefix_len", "prefix_repetition_suffix_len"), 0),
    **dict.fromkeys(("random_prefix_len", "num_warmups", "ready_check_timeout_sec"), 0),
}
ABOVE_ZERO = ("request_rate", "burstiness")


@dataclass(frozen=True, kw_only=True)
class LoadSettings:
    """Settings of one load: server, requests, arrivals, and what to report."""

    backend: str = COMPLETIONS
    base_url: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    endpoint: str | None = None
    header: list[str] = field(default_factory=list)
    api_key: str | None = None
    insecure: bool = False
    model_name: str | None = None
    tokenizer: str | None = None
    seed: int = 0
    dataset_name: str = "random"
    dataset_path: str | None = None
    trace: str | None = None
    num_prompts: int = 1000
    random_input_len: int = 1024
    random_output_len: int = 128
    random_range_ratio: str = "0.0"
    random_prefix_len: int = 0
    prefix_repetition_prefix_len: int = 256
    prefix_repetition_suffix_len: int = 256
    prefix_repetition_num_prefixes: int = 10
    prefix_repetition_output_len: int = 128
    multi_turn_num_turns: int = 4
    custom_output_len: int = 256
    disable_shuffle: bool = False
    no_oversample: bool = False
    request_rate: float = math.inf
    burstiness: float = 1.0
    max_concurrency: int | None = None
    ramp_up_strategy: str | None = None
    ramp_up_start_rps: int | None = None
    ramp_up_end_rps: int | None = None
    num_warmups: int = 0
    ready_check_timeout_sec: int = 0
    ignore_eos: bool = False
    sampling: Mapping[str, Any] = field(default_factory=dict)  # parameters of Given.BENCH
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    goodput: list[str] = field(default_factory=list)
    percentile_metrics: str = "ttft,tpot,itl"
    metric_percentiles: str = "99"
    label: str | None = None
    metadata: list[str] = field(default_factory=list)
    save_result: bool = False
    save_detailed: bool = False
    append_result: bool = False
    result_dir: str | None = None
    result_filename: str | None = None
    request_id_prefix: str = "bench-"
    disable_tqdm: bool = False

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{flag_of(name)} {value}: expected {least} or more.")
        for name in ABOVE_ZERO:
            if not getattr(self, name) > 0:
                raise ConfigError(f"{flag_of(name)} {getattr(self, name)}: expected more than 0.")
        one_of("backend", self.backend, BACKENDS)
        one_of("dataset_name", self.dataset_name, DATASET_NAMES)
        for name in self.metrics:
            one_of("percentile_metrics", name, METRICS)
        if self.trace is not None and self.backend == CHAT:
            raise ConfigError("--trace: its prompts are token ids: expected --backend openai.")
        given = (self.ramp_up_start_rps, self.ramp_up_end_rps)
        if self.ramp_up_strategy is not None:
            one_of("ramp_up_strategy", self.ramp_up_strategy, ("linear", "exponential"))
            if None in given or not math.isinf(self.request_rate):
                raise ConfigError(
                    "--ramp-up-strategy: expected --ramp-up-start-rps and --ramp-up-end-rps, and "
                    "no --request-rate."
                )
        # Read once here, so that mistakes are said before a server is asked anything.
        _ = (self.objectives, self.percentiles, self.headers, self.notes)
        _ = (self.range_ratio("input"), self.range_ratio("output"))

    @property
    def route(self) -> str:
        """Door path."""
        return self.endpoint or BACKENDS[self.backend]

    @property
    def url(self) -> str:
        """Base URL of the server."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return self.base_url or f"http://{host}:{self.port}"

    @property
    def metrics(self) -> list[str]:
        return [name.strip() for name in self.percentile_metrics.split(",")]

    @property
    def percentiles(self) -> list[float]:
        try:
            found = [float(word) for word in self.metric_percentiles.split(",")]
        except ValueError:
            found = [-1.0]
        if not all(0 <= one <= 100 for one in found):
            raise ConfigError(
                f"--metric-percentiles {self.metric_percentiles!r}: expected numbers from 0 to "
                "100, as 50,90,99."
            )
        return found

    @property
    def objectives(self) -> dict[str, float]:
        """SLOs in milliseconds, by metric."""
        return objectives_of(self.goodput)

    @property
    def headers(self) -> dict[str, str]:
        return pairs("--header", self.header)

    @property
    def notes(self) -> dict[str, str]:
        """User metadata saved with the result."""
        return pairs("--metadata", self.metadata)

    def range_ratio(self, side: str) -> float:
        """Spread of lengths around the mean, for "input" or "output"."""
        try:
            found = json.loads(self.random_range_ratio)
            ratio = float(found.get(side, 0.0) if isinstance(found, dict) else found)
        except (ValueError, TypeError):
            ratio = -1.0
        if not 0 <= ratio < 1:
            raise ConfigError(
                f"--random-range-ratio {self.random_range_ratio}: expected a number from 0 to "
                'less than 1, or {"input": 0.3, "output": 0.5}.'
            )
        return ratio


def one_of(name: str, value: str, choices: Mapping[str, Any] | tuple[str, ...]) -> None:
    """Raise ConfigError unless the value is one of the choices."""
    if value not in choices:
        raise ConfigError(f"{flag_of(name)} {value}: expected one of {', '.join(choices)}.")


def pairs(name: str, words: list[str]) -> dict[str, str]:
    """Parse KEY=VALUE words into a dict."""
    found = [word.partition("=") for word in words]
    if not all(key and equals for key, equals, _ in found):
        raise ConfigError(f"{name} {' '.join(words)}: expected KEY=VALUE.")
    return {key.strip(): value.strip() for key, _, value in found}


def objectives_of(pairs: Iterable[str]) -> dict[str, float]:
    """Parse SLOs such as "ttft:500" (milliseconds) by metric."""
    found: dict[str, float] = {}
    for pair in pairs:
        name, _, value = pair.partition(":")
        try:
            found[name] = float(value)
        except ValueError:
            found[name] = -1.0
        if name not in OBJECTIVES or found[name] < 0:
            raise ConfigError(
                f"--goodput {pair!r}: expected METRIC:MILLISECONDS with one of "
                f"{', '.join(OBJECTIVES)}, as ttft:500."
            )
    return found
