"""LLM: the engine in the caller's process and thread. The class that most users need.

Prompts in, RequestOutputs out, in the order of the prompts. It starts no threads, ports or
processes. Several threads may share one LLM: their requests run in the same batches.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import jax

import jengine
from jengine.api import arrays, parameters
from jengine.api.arguments import Params, chat_options, refuse_later
from jengine.api.arrays import GenerateResult, Scores
from jengine.api.base import BaseLLM
from jengine.api.batches import Batch, Batches, Speed
from jengine.api.parameters import OnInflight
from jengine.api.profiling import trace_folder
from jengine.api.stats import EngineStats
from jengine.api.tapping import opened_taps
from jengine.assembly.engine import Engine
from jengine.assembly.progress import ProgressFactory, progress_factory
from jengine.errors import RequestError
from jengine.executor.protocol import WorkerHealth
from jengine.outputs import RequestOutput
from jengine.runner.variants.tap_sets import Intervention
from jengine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from jengine import Comparison

Progress = bool | ProgressFactory
# A bar for less than this many seconds would only flicker.
SHORTEST_BAR = 0.5


class LLM(BaseLLM):
    """An offline engine for one model. `LLM("demo")` works anywhere.

    `model` is a local folder in Hugging Face format, or "demo". All other settings are keyword
    arguments with vLLM's names; see `jengine.EngineArgs`.
    """

    def _hold(self, engine: Engine) -> None:
        super()._hold(engine)
        self._batches = Batches(engine.session)
        self._enqueued: list[Batch] = []

    # --- answers ---------------------------------------------------------------------------

    def generate(
        self,
        prompts: Any,
        sampling_params: Params = None,
        *,
        use_tqdm: Progress = True,
        priority: int | Sequence[int] | None = None,
        capture: str | Sequence[str] | None = None,
        intervene: Mapping[str, Intervention] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        **later: Any,
    ) -> list[RequestOutput]:
        """Answer prompts; outputs come in the order of the prompts.

        A prompt is a string, a list of token ids, a dict with `prompt` or `prompt_token_ids`, or a
        list of these. Parameters: one for all, or one per prompt.

        `capture` names tap points (see `llm.tap_points`; * stands for any layer), and
        `output.captured` then holds f32 [tokens that ran, width] for each. `intervene` maps tap
        points to pure functions of the values there, f32 [tokens, width], or of values and
        positions; what they return flows on, for the tokens of these prompts only. Both are
        compiled into the step: give the same function again, not an equal one, to use it again.

        `tokenization_kwargs` are options of text.tokenization, such as truncate_prompt_tokens.
        """
        refuse_later("generate", later)
        prompts = self._front.tokenized(prompts, tokenization_kwargs)
        with self._taps(capture, intervene) as taps:
            return self._answer(prompts, sampling_params, use_tqdm, priority, taps)

    def chat(
        self,
        messages: Any,
        sampling_params: Params = None,
        use_tqdm: Progress = True,
        *,
        priority: int | Sequence[int] | None = None,
        capture: str | Sequence[str] | None = None,
        intervene: Mapping[str, Intervention] | None = None,
        **options: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation (a list of messages) or several.

        Options: chat_template, add_generation_prompt, continue_final_message, tools,
        chat_template_kwargs, tokenization_kwargs. `capture` and `intervene` as for `generate`.
        """
        prompts = self._front.chat_prompts(messages, chat_options("chat", options))
        with self._taps(capture, intervene) as taps:
            return self._answer(prompts, sampling_params, use_tqdm, priority, taps)

    def stream(
        self, prompts: Any, sampling_params: Params = None, **later: Any
    ) -> Generator[RequestOutput]:
        """Outputs as they grow, in the order in which tokens come.

        With `output_kind=RequestOutputKind.DELTA` each holds what is new. Leaving the loop aborts
        what is unfinished.
        """
        refuse_later("stream", later)
        return self._stream(prompts, sampling_params)

    def stream_chat(
        self, messages: Any, sampling_params: Params = None, **options: Any
    ) -> Generator[RequestOutput]:
        """`stream` for conversations; options as for `chat`."""
        prompts = self._front.chat_prompts(messages, chat_options("stream_chat", options))
        return self._stream(prompts, sampling_params)

    def enqueue(
        self,
        prompts: Any,
        sampling_params: Params = None,
        *,
        use_tqdm: Progress = True,
        priority: int | Sequence[int] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        **later: Any,
    ) -> list[str]:
        """Queue prompts without running them; `wait_for_completion` answers them."""
        refuse_later("enqueue", later)
        prompts = self._front.tokenized(prompts, tokenization_kwargs)
        return self._enqueue(prompts, sampling_params, use_tqdm, priority)

    def enqueue_chat(
        self, messages: Any, sampling_params: Params = None, use_tqdm: Progress = True,
        **options: Any,
    ) -> list[str]:  # fmt: skip
        """`enqueue` for conversations."""
        prompts = self._front.chat_prompts(messages, chat_options("enqueue_chat", options))
        return self._enqueue(prompts, sampling_params, use_tqdm)

    def wait_for_completion(
        self, output_type: type | tuple[type, ...] | None = None, *, use_tqdm: Progress = True
    ) -> list[RequestOutput]:
        """Answer everything that was queued, in the order in which it was queued.

        `output_type` is what vLLM's scripts expect the outputs to be: here always RequestOutput.
        """
        if output_type is not None and not issubclass(RequestOutput, output_type):
            raise RequestError(f"output_type={output_type!r}: every output is a RequestOutput.")
        batches, self._enqueued = self._enqueued, []
        try:
            return [output for batch in batches for output in self._complete(batch, use_tqdm)]
        finally:
            for batch in batches:  # Ctrl-C ends them all
                self._batches.discard(batch)

    # --- training loops --------------------------------------------------------------------

    def update_params(
        self,
        params: Any,
        *,
        donate: bool = False,
        on_inflight: OnInflight = "finish",
    ) -> int:
        """Use other parameters: a module, an nnx.State, or a tree of arrays. Returns their version.

        Structure, shapes and dtypes are checked first; on a mismatch nothing changes. Nothing is
        compiled, and arrays with the right sharding are used without a copy. `donate` deletes
        given arrays that had to be copied. Running requests finish first, are aborted, or continue
        with the new weights on the KV cache that the old ones have filled.
        """
        finish_all = self._batches.finish_all
        return parameters.update_params(self.engine, params, donate, on_inflight, finish_all)

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

    def compute_logprobs(
        self, token_ids: Any, lengths: Any = None, top_k: int = 0
    ) -> jax.Array | Scores:
        """log p(token | tokens before it) of whole sequences, f32 [B, T]; 0 for the first token.

        `token_ids` is a list of lists, or an array [B, T] with lengths [B]. A text or a list of
        texts is tokenized as a prompt is. With top_k > 0 the result also has the likeliest tokens
        of each position.
        """
        tokenize = self._token_ids
        return arrays.compute_logprobs(self._answer_rows, tokenize, token_ids, lengths, top_k)

    def generate_arrays(
        self,
        token_ids: Any,
        lengths: Any = None,
        *,
        key: Any = None,
        sampling_params: SamplingParams | None = None,
    ) -> GenerateResult:
        """Answer rows of tokens (or texts); tokens, lengths and log-probabilities come back as
        arrays. With n > 1 the n answers of a row are next to each other."""
        params = sampling_params or self.get_default_sampling_params()
        return arrays.generate_arrays(
            self._answer_rows,
            self._token_ids,
            token_ids,
            lengths,
            key=key,
            sampling_params=params,
        )

    def compare(self, against: str | Path = "torch", **options: Any) -> Comparison:
        """Compare the activations of these parameters with torch's, layer by layer.

        torch runs in another process. `against` is "torch", or the folder of a saved bundle.
        Options: prompts, new_tokens, points, sweeps, torch_python, torch_device, save_bundle. In a
        notebook the result shows its report; see also its verdict, columns(), to_frame(),
        save_report().
        """
        return jengine.compare(self, against, **options)

    # --- the engine ------------------------------------------------------------------------

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget cached prefixes. False, with nothing forgotten, if requests are using the cache.

        With `reset_running_requests`, running requests are preempted and their tokens recomputed:
        their answers do not change.
        """
        return self._front.reset_prefix_cache(reset_running_requests)

    def stats(self) -> EngineStats:
        """Counts of requests, cache use and compiled programs."""
        return self._front.stats()

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

        Methods: "memory" (bytes on the devices), "programs" (how many are compiled),
        "start_profile" (folder) and "stop_profile". In a program of several processes all of them
        must make the call.
        """
        return self._front.call_workers(method, arguments)

    def start_profile(self, profile_prefix: str | None = None) -> None:
        """Record what the devices do, into the folder of `profiler_config`, until stop_profile().

        The trace is one of jax.profiler, for TensorBoard or Perfetto. `profile_prefix` names a
        folder inside that one.
        """
        self.call_workers("start_profile", folder=trace_folder(self.engine.args, profile_prefix))

    def stop_profile(self) -> None:
        """Write what was recorded since start_profile()."""
        self.call_workers("stop_profile")

    def get_world_size(self, include_dp: bool = True) -> int:
        """How many devices the engine runs on: all of them, or those of one replica."""
        mesh = self.mesh
        return mesh.size if include_dp else mesh.size // mesh.shape.get("dp", 1)

    def shutdown(self) -> None:
        """Abort every request and free the device memory. Calling it twice is harmless."""
        engine = self._front.leave()
        if engine is not None:
            engine.client.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()

    # --- how it is done --------------------------------------------------------------------

    def _token_ids(self, text: str) -> list[int]:
        return self.engine.session.input_processor.prompts.render(text)["prompt_token_ids"]

    def _answer_rows(
        self, rows: list[list[int]], params: list[SamplingParams]
    ) -> list[RequestOutput]:
        return self._answer(rows, params, False)

    def _taps(self, capture: Any, intervene: Any) -> AbstractContextManager[int]:
        engine = self.engine
        if capture is None and intervene is None:
            return nullcontext(0)
        return opened_taps(engine.loaded, engine.model, capture, intervene)

    # A batch exists before its first request is queued and records each of them, so its requests
    # can be ended whatever is raised meanwhile, Ctrl-C included.

    def _answer(
        self,
        prompts: Any,
        sampling_params: Params,
        use_tqdm: Progress,
        priority: int | Sequence[int] | None = None,
        taps: int = 0,
    ) -> list[RequestOutput]:
        batch = Batch()
        try:
            self._submit(batch, prompts, sampling_params, use_tqdm, priority, taps)
            return self._complete(batch, use_tqdm)
        finally:
            self._batches.discard(batch)

    def _stream(self, prompts: Any, sampling_params: Params) -> Generator[RequestOutput]:
        batch = Batch()
        try:
            self._submit(batch, prompts, sampling_params, False, streaming=True)
            return self._batches.stream(batch)
        except BaseException:
            self._batches.discard(batch)
            raise

    def _enqueue(
        self,
        prompts: Any,
        sampling_params: Params,
        use_tqdm: Progress,
        priority: int | Sequence[int] | None = None,
    ) -> list[str]:
        batch = Batch()
        try:
            self._submit(batch, prompts, sampling_params, use_tqdm, priority)
            self._enqueued.append(batch)
        except BaseException:
            self._batches.discard(batch)
            raise
        return batch.ids

    def _submit(
        self,
        batch: Batch,
        prompts: Any,
        sampling_params: Params,
        use_tqdm: Progress,
        priority: int | Sequence[int] | None = None,
        taps: int = 0,
        *,
        streaming: bool = False,
    ) -> None:
        """Check and queue all prompts, or, with an error, none of them."""
        asked = self._front.asked(prompts, sampling_params, priority, streaming=streaming)
        with self._bar(use_tqdm, len(asked), "Rendering prompts") as progress:
            self._batches.submit(batch, asked, taps, lambda: progress.update(1))

    def _complete(self, batch: Batch, use_tqdm: Progress) -> list[RequestOutput]:
        """Run the engine until the batch is answered."""
        done: dict[str, RequestOutput] = {}
        speed = Speed()
        with self._bar(use_tqdm, len(batch.answers), "Processed prompts") as progress:
            for output in self._batches.run(batch):
                if output.finished:
                    done[output.request_id] = output
                    speed.note(output)
                    progress.set_postfix_str(str(speed), refresh=False)
                    progress.update(len(output.outputs))
        return [done[request_id] for request_id in batch.ids]

    def _bar(self, use_tqdm: Progress, total: int, label: str) -> Any:
        quiet = {"delay": SHORTEST_BAR} if total == 1 and not callable(use_tqdm) else {}
        return progress_factory(use_tqdm)(total=total, desc=label, **quiet)
