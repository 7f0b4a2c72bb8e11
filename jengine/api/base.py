"""Base of LLM and AsyncLLM: construction, and calls that never wait for a step."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, Self

import jax

from jengine.api.front import Front
from jengine.api.memory_picture import MemoryPicture, memory_picture
from jengine.api.parameters import param_shardings
from jengine.api.sharding_picture import ParamShardings
from jengine.assembly.build import build_engine
from jengine.assembly.engine import Engine
from jengine.assembly.located import checked_elsewhere, located
from jengine.assembly.preflight import checked_here
from jengine.assembly.processes.engine_process import start_engine_process
from jengine.assembly.progress import progress_factory
from jengine.assembly.settings.args import EngineArgs
from jengine.assembly.settings.values import field_types
from jengine.executor.choice import OWN_PROCESSES
from jengine.models.tap_points import TapPoint, tap_points
from jengine.runner.programs.ledger import CompileLedger
from jengine.runner.step.attention_backend import cache_dtype_name
from jengine.runner.step.group_arrays import each_array
from jengine.sampling_params import SamplingParams
from jengine.vllm_names import missing_attribute
from jengine.weights.partial_updates import gathered


def settings_signature() -> inspect.Signature:
    """Return EngineArgs' signature with plain types, without the command line's annotations."""
    found, kinds = inspect.signature(EngineArgs), field_types(EngineArgs)
    return found.replace(
        parameters=[one.replace(annotation=kinds[one.name]) for one in found.parameters.values()]
    )


class BaseLLM:
    """An engine with its `Front`."""

    # Signature with all settings, for notebooks and editors.
    __signature__ = settings_signature()

    def __init__(self, model: Any, **settings: Any) -> None:
        owner = type(self).__name__
        args = EngineArgs.checked(owner, model=model, **settings)
        if args.multiprocess or args.replicas_in_processes:
            self._hold(start_engine_process(located(args, checked_elsewhere(args))))
        else:
            args.params = gathered(args.params)
            args = located(args, checked_here(args.groups))
            self._hold(build_engine(args, progress_factory(args.show_progress)))

    def __reduce__(self) -> NoReturn:
        owner = type(self).__name__
        raise TypeError(
            f"{owner} cannot be pickled or copied: it holds programs and arrays of devices. "
            f"Give the other process the model's name and settings, and make {owner}(...) there; "
            "llm.save(folder) writes the parameters."
        )

    def __repr__(self) -> str:
        return engine_summary(self, self._front.living)

    if not TYPE_CHECKING:  # hidden from type checkers, which would accept any attribute

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(type(self).__name__, name)

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> Self:
        """An engine from an EngineArgs."""
        return cls(**{one.name: getattr(engine_args, one.name) for one in fields(engine_args)})

    @classmethod
    def over(cls, engine: Engine) -> Self:
        """Wrap an engine that is already built."""
        llm = cls.__new__(cls)
        llm._hold(engine)
        return llm

    def _hold(self, engine: Engine) -> None:
        self._front = Front(type(self).__name__, engine)

    @property
    def engine(self) -> Engine:
        """Raises EngineDead after shutdown."""
        return self._front.engine

    def get_tokenizer(self) -> Any:
        """The transformers tokenizer."""
        return self._front.tokenizer()

    @property
    def supported_tasks(self) -> tuple[str, ...]:
        """ "generate", or the model's pooling tasks."""
        pooling = self.engine.model.pooling
        return ("generate",) if pooling is None else pooling.tasks

    def get_default_sampling_params(self) -> SamplingParams:
        """The parameters of requests without any: the model's generation settings."""
        return self._front.default_params()

    @property
    def max_model_len(self) -> int:
        """The longest prompt and answer together, in tokens."""
        return self.engine.schedule.max_model_len

    @property
    def weights_version(self) -> int:
        """Number of parameter updates so far."""
        return self.engine.client.weights_version

    @property
    def ledger(self) -> CompileLedger:
        """Every compiled program, printable."""
        return self.engine.loaded.programs.ledger

    @property
    def mesh(self) -> jax.sharding.Mesh:
        """The engine's devices as a mesh, over which its arrays are sharded.

        With data parallelism the first axis, `dp`, numbers the replicas.
        """
        return self.engine.placement.mesh

    @property
    def params(self) -> Mapping[str, jax.Array]:
        """Path -> parameter in use, read-only; a copy if the step holds it in another layout.

        `update_params` takes the same paths.
        """
        self.engine.check_leaves()
        return MappingProxyType(self.engine.loaded.parameters())

    @property
    def param_shardings(self) -> ParamShardings:
        """Parameter -> sharding over the mesh, or over its pipeline stage's part; drawn in
        notebooks. Replicated over `dp`."""
        return param_shardings(self.engine)

    @property
    def tap_points(self) -> list[TapPoint]:
        """Points whose activations `LLM.generate` can capture or change."""
        return tap_points(self.engine.model)

    def memory(self) -> MemoryPicture:
        """The parts of this engine's memory: printable, and a picture in notebooks."""
        return memory_picture(self.engine)


def engine_summary(owner: object, engine: Engine | None) -> str:
    """The repr of LLM and AsyncLLM: model, devices, cache and programs."""
    name = type(owner).__name__
    if engine is None:
        return f"<{name}: shut down>"
    model, cache = engine.model, engine.cache
    source = "live module" if engine.folder is None else str(engine.folder)
    parts = [
        f"{source} ({model.architecture}, {len(model.layers)} layers, {model.dtype})",
        f"context {engine.schedule.max_model_len:,} tokens",
        devices(engine),
        f"cache {(cache.fewest_blocks - 1) * cache.block_size:,} tokens{cache_type(engine)}",
        programs(engine),
    ]
    return f"<{name}: {', '.join(part for part in parts if part)}>"


def devices(engine: Engine) -> str:
    """Number and kind of the devices."""
    if engine.devices is None and engine.args.executor in OWN_PROCESSES:
        return f"{engine.platform} in another process"
    if engine.devices is None:
        return f"devices of {engine.args.executor} workers"
    mesh = engine.placement.mesh
    return f"{mesh.size} x {mesh.devices.flat[0].device_kind}"


def cache_type(engine: Engine) -> str:
    """The KV cache's dtype, if it is in this process."""
    if engine.devices is None:
        return ""
    names = {
        cache_dtype_name(array.dtype): None
        for cache in engine.loaded.programs.compiler.state.caches
        for array in each_array(cache)
    }
    return f" in {' and '.join(names)}"


def programs(engine: Engine) -> str:
    """Counts of step programs: compiled, still to compile, and compiled on first use."""
    if engine.devices is None:
        return ""
    counts = engine.loaded.program_counts()
    to_come = f" and {counts.programs_to_come} to come" if counts.programs_to_come else ""
    late = f", {len(counts.on_first_use)} variants on first use" if counts.on_first_use else ""
    return f"{counts.programs} programs{to_come}{late}"
