"""Ladders of compiled sizes: defaults, with the user's in place of single ones.

In: limits of a step and `compilation_config`. Out: Ladders that cover every step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jengine.config import ScheduleConfig
from jengine.errors import ConfigError
from jengine.runner.variants.buckets import FirstRungs, Ladders, StepShapes, default_ladders


def ladders_for(
    schedule: ScheduleConfig, shapes: StepShapes, compilation: Mapping[str, Any], first: FirstRungs
) -> Ladders:
    """The ladders of an engine; `first` are the defaults' lowest rungs."""
    ladders = default_ladders(
        schedule.max_num_seqs,
        schedule.max_num_batched_tokens,
        schedule.max_model_len,
        shapes.block_size,
        shapes.prefill_tile,
        first,
        schedule.max_decode_rows,
    )

    def chosen(name: str, usual: tuple[int, ...]) -> tuple[int, ...]:
        return rungs(name, compilation[name]) if name in compilation else usual

    ladders = replace(
        ladders,
        decode_rows=chosen("decode_rows", ladders.decode_rows),
        prefill_tokens=chosen("prefill_tokens", ladders.prefill_tokens),
        pages=chosen("pages", ladders.pages),
        repeats=tuple(sorted({1, schedule.num_scheduler_steps})),
    )
    tokens = schedule.max_num_batched_tokens // shapes.prefill_tile * shapes.prefill_tile
    enough = {"decode_rows": schedule.max_decode_rows, "prefill_tokens": tokens,
              "pages": shapes.max_pages}  # fmt: skip
    for name, least in enough.items():
        last = getattr(ladders, name)[-1]
        if last < least:
            raise ConfigError(
                f"compilation_config[{name!r}] ends at {last}, but a step may need {least}; "
                f"add {least}."
            )
    for tokens in ladders.prefill_tokens:
        if tokens % shapes.prefill_tile:
            raise ConfigError(
                f"compilation_config['prefill_tokens'] has {tokens}; expected multiples of "
                f"{shapes.prefill_tile}."
            )
    return ladders


def context_parallel_ladders(ladders: Ladders, ways: int, tile: int) -> Ladders:
    """Round decode rows up to multiples of `ways`, and prefill tokens to multiples of `ways`
    tiles."""

    def rounded(sizes: tuple[int, ...], unit: int) -> tuple[int, ...]:
        return tuple(sorted({-(-size // unit) * unit for size in sizes}))

    return replace(
        ladders,
        decode_rows=rounded(ladders.decode_rows, ways),
        prefill_tokens=rounded(ladders.prefill_tokens, ways * tile),
    )


def rungs(name: str, given: Any) -> tuple[int, ...]:
    """A user's ladder, checked to be a list of integers."""
    if not isinstance(given, (list, tuple)) or any(type(item) is not int for item in given):
        raise ConfigError(f"compilation_config[{name!r}]={given!r}: expected a list of integers.")
    return tuple(given)
