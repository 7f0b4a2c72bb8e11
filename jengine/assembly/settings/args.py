"""EngineArgs: all settings of an engine, and properties derived from several groups. No jax.

Fields and help texts are in a file per group (`model_args.py` and its neighbours), beside the
struct that is passed to other rooms. Names and defaults follow vLLM. vLLM's other names are in
vllm_args.py, so that their errors can say what to use instead.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from jengine.assembly.settings.adapter_args import AdapterArgs
from jengine.assembly.settings.checked_args import check_args
from jengine.assembly.settings.flags import add_field_flags
from jengine.assembly.settings.groups import Groups, groups_of
from jengine.assembly.settings.media_args import MediaArgs
from jengine.assembly.settings.memory_args import MemoryArgs
from jengine.assembly.settings.model_args import ModelArgs
from jengine.assembly.settings.parallel_args import ParallelArgs
from jengine.assembly.settings.schedule_args import ScheduleArgs
from jengine.assembly.settings.setting import declared
from jengine.assembly.settings.step_args import AnswerArgs, KernelArgs, ProgramArgs
from jengine.assembly.settings.vllm_args import PARTS, VLLM_SETTINGS, own_settings
from jengine.assembly.settings.warm_up_settings import WarmUp
from jengine.assembly.settings.watch_args import WatchArgs
from jengine.errors import ConfigError, unknown_argument

T = TypeVar("T")


def takes_settings(cls: type[T]) -> type[T]:
    """Make a dataclass accept settings by vLLM's names too, and name unknown ones in errors."""
    original = cls.__init__

    @functools.wraps(original)
    def checked(self: Any, *args: Any, **given: Any) -> None:
        original(self, *args, **known_settings("EngineArgs", given))

    cls.__init__ = checked  # type: ignore[method-assign]
    return cls


def known_settings(owner: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings under EngineArgs' names. Raises for unknown and unsupported ones."""
    settings = own_settings(owner, given, RENAMED)
    for name in settings:
        if name not in SETTINGS:
            raise unknown_argument(owner, name, list(SETTINGS))
    return settings


@takes_settings
@dataclass
class EngineArgs(
    WatchArgs, AnswerArgs, ProgramArgs, MediaArgs, KernelArgs, AdapterArgs,
    ScheduleArgs, MemoryArgs, ParallelArgs, ModelArgs,
):  # fmt: skip
    """All settings of an engine. None means the default, or a value that suits the model and the
    device. Fields are those of the bases, from the last base to the first."""

    @classmethod
    def checked(cls, owner: str, model: Any, **given: Any) -> EngineArgs:
        """EngineArgs from keyword arguments; errors name their `owner`."""
        return cls(model, **known_settings(owner, given))

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Add a flag for each setting to a parser of the user's own.

        What is not given stays absent, so `LLM(**vars(parser.parse_args()))` takes the defaults.
        """
        group = parser.add_argument_group("engine")
        add_field_flags(group, EngineArgs, {"model": "a model folder, or demo", **ENGINE_HELP})
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> EngineArgs:
        """EngineArgs from parsed flags. Names that are no settings are left to the program."""
        given = {name: value for name, value in vars(args).items() if name in NAMES}
        if given.get("model") is None:
            raise ConfigError("--model is missing: give a model folder, or demo.")
        return cls(**given)

    def __post_init__(self) -> None:
        check_args(self, SETTINGS)

    @property
    def groups(self) -> Groups:
        """The settings by group."""
        return groups_of(self, self.adapter_limits)

    @property
    def recorded(self) -> dict[str, Any]:
        """The settings besides sizes that a replay of recorded steps needs."""
        return {name: getattr(self, name) for name, one in SETTINGS.items() if one.recorded}

    @property
    def wait_for(self) -> str:
        """Programs compiled before requests are admitted ("largest" or "all"), as far as settings
        tell."""
        return self.warm_up.wait_for(same_bits=False)

    @property
    def warm_up(self) -> WarmUp:
        """The settings that determine `wait_for`."""
        return WarmUp(
            self.compilation.get("wait_for"),
            seeded=self.seed is not None,
            deterministic=self.deterministic,
            strict=self.strict,
            enforce_eager=self.enforce_eager,
            num_scheduler_steps=self.num_scheduler_steps,
            executor=self.executor,
        )


SETTINGS = declared(EngineArgs)
ENGINE_HELP = {name: one.help for name, one in SETTINGS.items() if one.help}  # those with a flag
RENAMED = {one.renamed: name for name, one in SETTINGS.items() if one.renamed}
NAMES = (*SETTINGS, *VLLM_SETTINGS, *RENAMED, *PARTS)  # all names of settings


def settings_of(command: str) -> tuple[str, ...]:
    """The settings for which a command has flags."""
    return tuple(name for name, one in SETTINGS.items() if command in one.commands.split())
