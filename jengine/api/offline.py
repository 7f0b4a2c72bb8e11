"""Calls of LLM other than requests: parameters, sleep, adapters, state, shutdown."""

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
    """An engine whose calls block until they are done. `LLM` adds the requests."""

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
        """Run other parameters from the next step on. Nothing is compiled.

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
            The version of the parameters: the number of updates.

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
        """Write the parameters in use as a model folder, which appears atomically.

        Includes the tokenizer and generation_config.json if the engine has them. "safetensors" also
        loads in transformers. `overwrite` replaces a saved model, never anything else.
        """
        parameters.save(self.engine, path, format, overwrite)

    def reload_weights(self) -> None:
        """Reload the parameters from the model's folder, as after `sleep(level=2)`."""
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
        """Free memory until `wake_up`; needs `enable_sleep_mode=True`.

        Level 1 drops the KV cache and offloads parameters to host memory; level 2 drops both, so
        that `update_params` or `reload_weights` must follow; level 0 only pauses. `tags` names what
        sleeps: "weights", "kv_cache" or both. Programs stay compiled. `mode`: open requests are
        aborted ("abort"), finished first ("wait"), or kept with their tokens ("keep"). `enqueue`
        accepts prompts meanwhile, unless `new_requests="refuse"`.
        """
        enabled = self.engine.args.enable_sleep_mode
        order = SleepOrder.checked(enabled, level, mode, tags, new_requests)
        if not self._answering.batches.paused:
            self._answering.batches.pause(order.mode)
        self._front.session.refuse_new(order.refusal)
        self._front.client.ask(order.question)

    def wake_up(self, tags: Sequence[str] | None = None) -> bool:
        """Restore all sleeping memory, or that of `tags` ("weights", "kv_cache", "scheduling").

        Returns:
            True once everything is awake and steps run again. Parameters dropped by level 2 stay
            asleep until `update_params` or `reload_weights`.
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
        """Drop only the KV cache until `wake_up`; open requests are kept and recomputed."""
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
        """Unload an adapter; running requests keep it until they end. Returns False if it is not
        loaded."""
        return self._front.session.adapters.remove(lora_id)

    def list_loras(self) -> set[int]:
        """The `lora_int_id`s of loaded adapters."""
        return self._front.session.adapters.numbers()

    def pin_lora(self, lora_id: int) -> bool:
        """Exempt an adapter from eviction until it is removed."""
        return self._front.session.adapters.pin(lora_id)

    def resize_cache(self, num_bytes: int | str) -> None:
        """Resize the KV cache while the engine runs, for example to "2G".

        Cached prefixes are kept as far as they fit, and running requests continue. Only the steps
        are recompiled. If it fails, the cache is unchanged.
        """
        self._front.resize_cache(num_bytes)

    # --- the engine ------------------------------------------------------------------------

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Clear the prefix cache. Returns False, and clears nothing, while requests use it.

        With `reset_running_requests`, running requests are preempted and recomputed; their answers
        do not change.
        """
        return self._front.client.ask(ResetPrefixCache(reset_running_requests))

    def stats(self) -> EngineStats:
        """Counts of requests, cache use and compiled programs."""
        return self._front.stats()

    def get_metrics(self, prefix: Literal["jengine", "vllm"] = "jengine") -> list[Metric]:
        """Current values of all metrics, as objects of `jengine.metrics.reader`.

        The same as a server's /metrics. `prefix="vllm"` names them as vLLM does.
        """
        return self._front.get_metrics(prefix)

    def wait_until_warm(self, timeout: float | None = None) -> bool:
        """Wait until every program is compiled; False after `timeout` seconds.

        Requests are admitted before that, unless the engine has a seed or
        `compilation_config={"wait_for": "all"}`. Raises the error of a failed compilation.
        """
        return self.engine.wait_until_warm(timeout)

    def health(self, *, probe: bool = False) -> list[WorkerHealth]:
        """Health of every process that runs steps. Raises EngineDead if one is lost.

        `probe` runs an empty step on every device first. In a program of several processes all must
        call it.
        """
        return self._front.health(probe)

    def call_workers(self, method: str, **arguments: Any) -> list[Any]:
        """Call a method in every process that runs steps. Returns the results by rank.

        Methods: "memory" (bytes on the devices), "memory_profile" (for pprof),
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
        """Call in every process that runs steps, between two steps. Returns the results by rank.

        `method`: a name known to `call_workers` or registered by a plugin; or a function, called
        with the runner of each data-parallel replica, if steps run in this process: code is never
        sent to another.
        """
        return collective_rpc(self._front, method, timeout, args, kwargs)

    def start_profile(self, profile_prefix: str | None = None) -> None:
        """Start a jax.profiler trace (for TensorBoard or Perfetto) into the folder of
        `profiler_config`.

        `profile_prefix` names a subfolder.
        """
        folder = trace_folder(self.engine.args.profile_folder, profile_prefix)
        self._front.call_workers("start_profile", {"folder": folder})

    def stop_profile(self) -> None:
        """Write the trace started by start_profile()."""
        self._front.call_workers("stop_profile", {})

    def write_recording(self) -> str:
        """Write the last steps to the folder of `flight_recorder=`, for `jengine replay`. Returns
        the file.

        Contains the token ids of prompts and answers.
        """
        return self._front.call_workers("write_recording", {})[0]

    def get_world_size(self, include_dp: bool = True) -> int:
        """Number of devices of the engine, or of one replica."""
        mesh = self.mesh
        return mesh.size if include_dp else mesh.size // mesh.shape.get("dp", 1)

    def shutdown(self) -> None:
        """Abort every request and free the device memory. Idempotent."""
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
