"""Calls on an engine in the caller's thread, apart from requests: parameters, state, shutdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from jengine.adapters import LoRARequest
from jengine.api import parameters
from jengine.api.answering import Answering
from jengine.api.async_requests import PauseMode
from jengine.api.base import BaseLLM
from jengine.api.collective import collective_rpc
from jengine.api.parameters import OnInflight
from jengine.api.profiling import trace_folder
from jengine.api.sleep_order import NewRequests, SleepOrder, waking
from jengine.api.stats import EngineStats
from jengine.assembly.engine import Engine
from jengine.engine.questions import ReloadWeights, ResetPrefixCache
from jengine.executor.protocol import WorkerHealth
from jengine.metrics.reader import Metric
from jengine.weights.mapped_trees import Mapped


class OfflineEngine(BaseLLM):
    """An engine whose calls return when they are done. `LLM` adds the requests."""

    def _hold(self, engine: Engine) -> None:
        super()._hold(engine)
        self._answering = Answering(self._front)

    # --- parameters ------------------------------------------------------------------------

    def update_params(
        self,
        params: Any,
        *,
        mapping: Mapped | None = None,
        donate: bool = False,
        on_inflight: OnInflight = "finish",
    ) -> int:
        """Use other parameters from the next step on. Nothing is compiled.

        Args:
            params: a module, an nnx.State, or a tree of arrays, under the paths of `llm.params`,
                whose arrays are used without a copy where the sharding is right, or under Hugging
                Face names. With `mapping`, any pytree, whose arrays are copied. Or such names in
                pieces: an iterable of (name, array) pairs or of mappings, such as one per file, is
                read once and copied to the host piece by piece, unless it is a list or a tuple.
            mapping: how the tree's paths become Hugging Face names: "flax", "equinox", "maxtext" or
                "levanter"; a dict of patterns, `{"blocks.{layer}.up.kernel":
                MapTo("model.layers.{layer}.mlp.up_proj.weight", inputs=1)}`; or a function (path,
                array) -> {name: array}.
            donate: whether given arrays that had to be copied are deleted.
            on_inflight: whether running requests "finish" first, are "abort"ed, or "continue" with
                the new weights on the KV cache that the old ones have filled.

        Returns:
            The version of the parameters: how often they were replaced.

        Raises:
            ConfigError, CheckpointError: structure, shapes or dtypes do not fit, or a path matches
                no pattern, or two pieces have a name. Everything is checked first, so nothing has
                changed then; nor if an iterator raises.
        """
        finish_all = self._answering.batches.finish_all
        return parameters.update_params(
            self.engine, params, donate, on_inflight, finish_all, mapping
        )

    def save(
        self,
        path: str | Path,
        format: Literal["safetensors", "orbax"] = "safetensors",
        *,
        overwrite: bool = False,
    ) -> None:
        """Write the parameters in use as a model folder, which appears when it is complete.

        The tokenizer and generation_config.json go with them, as far as this engine has them.
        "safetensors" also loads in transformers. `overwrite` replaces a saved model, never
        anything else.
        """
        parameters.save(self.engine, path, format, overwrite)

    def reload_weights(self) -> None:
        """Read the parameters from the model's folder again, as after `sleep(level=2)`."""
        self._front.client.ask(ReloadWeights())

    # --- sleep -----------------------------------------------------------------------------

    def sleep(
        self,
        level: int = 1,
        mode: PauseMode = "abort",
        *,
        tags: Sequence[str] | None = None,
        new_requests: NewRequests = "keep",
    ) -> None:
        """Give memory back until `wake_up`; needs `enable_sleep_mode=True`.

        Level 1 drops the KV cache and copies parameters to host memory; level 2 drops them as well,
        so that `update_params` or `reload_weights` must follow; level 0 only pauses. `tags` names
        what sleeps: "weights", "kv_cache" or both. Programs stay compiled. `mode` is for requests
        that are open: "abort" them, "wait" for their end, or "keep" them for the waking, with the
        tokens they have. `enqueue` takes prompts meanwhile, unless `new_requests="refuse"`.
        """
        enabled = self.engine.args.enable_sleep_mode
        order = SleepOrder.checked(enabled, level, mode, tags, new_requests)
        if not self._answering.batches.paused:
            self._answering.batches.pause(order.mode)
        self._front.session.refuse_new(order.refusal)
        self._front.client.ask(order.question)

    def wake_up(self, tags: Sequence[str] | None = None) -> bool:
        """Bring back all sleeping memory, or that of `tags` ("weights", "kv_cache", "scheduling").

        Returns:
            True once nothing sleeps and steps run again. Parameters dropped by level 2 stay asleep
            until `update_params` or `reload_weights`.
        """
        awake = self._front.client.ask(waking(tags))
        if awake:
            self._front.session.refuse_new(None)
            self._answering.batches.resume()
        return awake

    def is_sleeping(self) -> bool:
        """Whether generation is paused or any memory is asleep."""
        return self._answering.batches.paused or self._front.is_asleep

    def release_kv_cache_memory(self) -> None:
        """Drop the KV cache alone until `wake_up`; open requests are kept and computed again."""
        self.sleep(level=1, mode="keep", tags=["kv_cache"])

    # --- adapters --------------------------------------------------------------------------

    def add_lora(
        self,
        lora_request: LoRARequest,
        params: Mapping[str, Any] | None = None,
        *,
        alpha: float | None = None,
        use_rslora: bool = False,
    ) -> bool:
        """Load a LoRA adapter now. True: it is new or replaces one.

        It is read from the request's folder or, without a file, made of a trainer's matrices:
        `params` maps names to arrays, as one dict or nested, by PEFT's names
        (`model.layers.0.self_attn.q_proj.lora_A.weight`) or those of our own weights
        (`layers.0.attention.qkv.a` [inputs, rank] and `.b` [rank, outputs]). With `alpha` their
        result is scaled as PEFT does. Running requests keep the adapter that they began with.
        """
        add = self._front.session.adapters.add
        return add(lora_request, params, alpha, use_rslora=use_rslora)

    def remove_lora(self, lora_id: int) -> bool:
        """Unload an adapter; its running requests still end with it. False: it is not loaded."""
        return self._front.session.adapters.remove(lora_id)

    def list_loras(self) -> set[int]:
        """The `lora_int_id`s of loaded adapters."""
        return self._front.session.adapters.numbers()

    def pin_lora(self, lora_id: int) -> bool:
        """Keep an adapter in memory until it is removed, whatever else is loaded."""
        return self._front.session.adapters.pin(lora_id)

    def resize_cache(self, num_bytes: int | str) -> None:
        """Give the KV cache another size, for example "2G", while the engine runs.

        Cached prefixes stay as far as they fit; running requests go on from them. The steps are
        compiled for the new size, and nothing else is. With an error the cache stays as it was.
        """
        self._front.resize_cache(num_bytes)

    # --- the engine ------------------------------------------------------------------------

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget cached prefixes. False, with nothing forgotten, if requests are using the cache.

        With `reset_running_requests`, running requests are preempted and their tokens recomputed:
        their answers do not change.
        """
        return self._front.client.ask(ResetPrefixCache(reset_running_requests))

    def stats(self) -> EngineStats:
        """Counts of requests, cache use and compiled programs."""
        return self._front.stats()

    def get_metrics(self, prefix: Literal["jengine", "vllm"] = "jengine") -> list[Metric]:
        """Every counter, gauge and histogram as it is now, as objects of `jengine.metrics.reader`.

        They are those that a server shows at /metrics. `prefix="vllm"` names them as vLLM does.
        """
        return self._front.get_metrics(prefix)

    def wait_until_warm(self, timeout: float | None = None) -> bool:
        """Wait until every program is compiled; False if that takes more seconds than `timeout`.

        Requests are admitted before that, unless the engine was given a seed or
        `compilation_config={"wait_for": "all"}`. Raises the error of a compilation that failed.
        """
        return self.engine.wait_until_warm(timeout)

    def health(self, *, probe: bool = False) -> list[WorkerHealth]:
        """The health of every process that runs steps. Raises EngineDead if one is lost.

        `probe` runs an empty step on every device first. In a program of several processes all of
        them must call it.
        """
        return self._front.health(probe)

    def call_workers(self, method: str, **arguments: Any) -> list[Any]:
        """Call a method in every process that runs steps; the results, by rank.

        Methods: "memory" (bytes on the devices), "memory_profile" (what is there, for pprof),
        "programs" (how many are compiled), "start_profile" (folder), "stop_profile" and
        "write_recording". In a program of several processes all of them must make the call.
        """
        return self._front.call_workers(method, arguments)

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call in every process that runs steps, between two of them; the results, by rank.

        A name is one that `call_workers` knows or a plugin has registered. A function is called
        with the runner of each data-parallel replica, where steps run in this process: code is
        never sent to another one.
        """
        return collective_rpc(self._front, method, timeout, args, kwargs)

    def start_profile(self, profile_prefix: str | None = None) -> None:
        """Record what the devices do, into the folder of `profiler_config`, until stop_profile().

        The trace is one of jax.profiler, for TensorBoard or Perfetto. `profile_prefix` names a
        folder inside that one.
        """
        folder = trace_folder(self.engine.args.profile_folder, profile_prefix)
        self._front.call_workers("start_profile", {"folder": folder})

    def stop_profile(self) -> None:
        """Write what was recorded since start_profile()."""
        self._front.call_workers("stop_profile", {})

    def write_recording(self) -> str:
        """Write the last steps to the folder of `flight_recorder=`; the file, for `jengine replay`.

        It holds the token ids of prompts and answers.
        """
        return self._front.call_workers("write_recording", {})[0]

    def get_world_size(self, include_dp: bool = True) -> int:
        """How many devices the engine runs on: all of them, or those of one replica."""
        mesh = self.mesh
        return mesh.size if include_dp else mesh.size // mesh.shape.get("dp", 1)

    def shutdown(self) -> None:
        """Abort every request and free the device memory. Calling it twice is harmless."""
        engine = self._front.leave()
        if engine is not None:
            engine.client.shutdown()
            engine.session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()
