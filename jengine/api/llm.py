"""LLM: the engine in the caller's process and thread. What most users hold.

Prompts in, RequestOutputs out, in the order of the prompts. No threads, no ports, no processes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import jax
import msgspec

import jengine
from jengine.api import arrays
from jengine.api.arrays import GenerateResult, Scores
from jengine.api.batches import Batch, Batches, Speed, as_list, spread
from jengine.api.memory_picture import MemoryPicture, memory_picture
from jengine.api.profiling import trace_folder
from jengine.api.sharding_picture import ParamShardings
from jengine.api.summary import engine_summary
from jengine.api.tapping import opened_taps
from jengine.assembly.args import EngineArgs, one_of
from jengine.assembly.build import Engine, build_engine
from jengine.assembly.progress import ProgressFactory, progress_factory
from jengine.engine.input_processor import Prompt
from jengine.errors import EngineDead, RequestError, UnsupportedFeature, unknown_argument
from jengine.executor.calls import decoded_answers, encoded_arguments
from jengine.executor.protocol import WorkerHealth
from jengine.models.parameter import named_parameters
from jengine.models.taps import TapPoint, tap_points
from jengine.outputs import Counts, RequestOutput
from jengine.runner.ledger import CompileLedger
from jengine.runner.taps import Intervention
from jengine.sampling_params import RequestOutputKind, SamplingParams
from jengine.text.chat_template import render_chat
from jengine.text.tokenization import checked_tokenization
from jengine.vllm_names import missing_attribute
from jengine.weights.abstract import with_values
from jengine.weights.live import fitting_arrays, release_moved
from jengine.weights.save import save_model

if TYPE_CHECKING:
    from jengine import Comparison

Params = SamplingParams | Sequence[SamplingParams] | None
Progress = bool | ProgressFactory
# Later features, as arguments of the methods below.
LATER_ARGUMENTS = {
    "lora_request": "LoRA adapters",
    "mm_processor_kwargs": "multimodal input",
    "chat_template_content_format": "choosing the content format of chat templates",
}
CHAT_OPTIONS = (
    "chat_template",
    "add_generation_prompt",
    "continue_final_message",
    "tools",
    "chat_template_kwargs",
    "tokenization_kwargs",
)
ALWAYS_KNOWN = ("sampling_params", "use_tqdm", "priority")
# A bar for less than this many seconds would only flicker.
SHORTEST_BAR = 0.5


@dataclass(frozen=True)
class EngineStats:
    """What an engine is doing, in numbers."""

    running: int
    waiting: int
    preemptions: int
    cache_usage: float
    prefix_queries: int
    prefix_hits: int
    programs: int
    compiles_after_warm_up: int
    replicas: tuple[Counts, ...] = ()  # each data-parallel replica's own, where there are several
    programs_to_come: int = 0  # being compiled while requests run
    on_first_use: tuple[str, ...] = ()  # step variants that the first request for them compiles

    def __str__(self) -> str:
        programs = (
            f"programs {self.programs} ({self.compiles_after_warm_up} compiled after warm-up)"
        )
        if self.programs_to_come:
            programs += f", {self.programs_to_come} still to be compiled"
        if self.on_first_use:
            programs += f", compiled on first use: {', '.join(self.on_first_use)}"
        each = [f"\n  replica {i}: {in_words(one)}" for i, one in enumerate(self.replicas)]
        return f"{in_words(self)}, {programs}{''.join(each)}"


def in_words(counts: Counts | EngineStats) -> str:
    """What an engine or one of its replicas is doing."""
    queries = counts.prefix_queries
    rate = counts.prefix_hits / queries if queries else 0.0
    return (
        f"running {counts.running}, waiting {counts.waiting}, preemptions {counts.preemptions}, "
        f"cache in use {counts.cache_usage:.1%}, prefix cache hit rate {rate:.1%}"
    )


class LLM:
    """An offline engine for one model. `LLM("demo")` works anywhere.

    `model` is a local folder in Hugging Face format, or "demo". All other settings are keyword
    arguments with vLLM's names; see `jengine.EngineArgs`.
    """

    def __init__(self, model: str | Path, **settings: Any) -> None:
        self._engine: Engine | None = None
        self._enqueued: list[Batch] = []
        args = EngineArgs.checked("LLM", model=model, **settings)
        self._engine = build_engine(args, progress_factory(args.show_progress))
        self._batches = Batches(self._engine.session)

    def __repr__(self) -> str:
        return engine_summary(self, self._engine)

    if not TYPE_CHECKING:  # a checker would take every name for an attribute

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(type(self).__name__, name)

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> LLM:
        """An engine from an EngineArgs."""
        return cls(**vars(engine_args))

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
        list of these. Parameters: one for all, or one a prompt.

        `capture` names tap points (see `llm.tap_points`; * stands for any layer), and
        `output.captured` then holds f32 [tokens that ran, width] for each. `intervene` maps tap
        points to pure functions of the values there, f32 [tokens, width], or of values and
        positions; what they return flows on, for the tokens of these prompts only. Both are
        compiled into the step: give the same function again, not an equal one, to use it again.

        `tokenization_kwargs` are options of text.tokenization, such as truncate_prompt_tokens.
        """
        refuse_later("generate", later)
        prompts = self._tokenized(prompts, tokenization_kwargs)
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
        prompts = self._render_chats(messages, options)
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
        prompts = self._render_chats(messages, options)
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
        prompts = self._tokenized(prompts, tokenization_kwargs)
        return self._enqueue(prompts, sampling_params, use_tqdm, priority)

    def enqueue_chat(
        self, messages: Any, sampling_params: Params = None, use_tqdm: Progress = True,
        **options: Any,
    ) -> list[str]:  # fmt: skip
        """`enqueue` for conversations."""
        return self._enqueue(self._render_chats(messages, options), sampling_params, use_tqdm)

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
                self._batches.discard(batch.ids)

    # --- training loops --------------------------------------------------------------------

    def update_params(
        self,
        params: Any,
        *,
        donate: bool = False,
        on_inflight: Literal["finish", "abort", "continue"] = "finish",
    ) -> int:
        """Use other parameters: a module, an nnx.State, or a tree of arrays. Returns their version.

        Structure, shapes and dtypes are checked first; on a mismatch nothing changes. Nothing is
        compiled, and arrays that lie where they belong are used without a copy. `donate` lets go
        of arrays that had to be moved. Requests that are running finish first, are aborted, or
        continue with the new weights on top of what they have cached.
        """
        engine = self.engine
        one_of("on_inflight", on_inflight, ("finish", "abort", "continue"))
        values = fitting_arrays(engine.declared, params, engine.places)
        if on_inflight == "finish":
            self._batches.finish_all()
        if on_inflight == "abort":
            self._batches.abort_all()
        leaves = engine.order.leaves(values)
        if donate:
            release_moved(params, values)
        return engine.session.core.update_weights(leaves)

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
        engine = self.engine
        if engine.processes > 1:
            raise UnsupportedFeature(
                "save: writing parameters that are spread over several processes is not built yet. "
                "Save them from the program that owns them."
            )
        engine.check_leaves()
        save_model(
            with_values(engine.declared, engine.loaded.parameters()),
            engine.model,
            path,
            format,
            tokenizer=None if engine.tokenizer is None else engine.tokenizer.hf,
            source=engine.folder,
            overwrite=overwrite,
        )

    @property
    def weights_version(self) -> int:
        """How often the parameters were replaced."""
        return self.engine.session.core.weights_version

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
        """How close these parameters' numbers are to torch's, layer by layer, in another process.

        `against` is "torch", or the folder of a saved bundle. Options: prompts, new_tokens,
        points, sweeps, torch_python, torch_device, save_bundle. In a notebook the result shows
        its report; see also its verdict, columns(), to_frame(), save_report().
        """
        return jengine.compare(self, against, **options)

    # --- the engine ------------------------------------------------------------------------

    def get_tokenizer(self) -> Any:
        """The transformers tokenizer."""
        tokenizer = self.engine.tokenizer
        if tokenizer is None:
            raise RequestError("this engine has no tokenizer (skip_tokenizer_init=True).")
        return tokenizer.hf

    def get_default_sampling_params(self) -> SamplingParams:
        """What a request without parameters gets: the model's own generation settings."""
        return SamplingParams(**self.engine.default_params)

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget cached prefixes. False if requests are using the cache.

        With `reset_running_requests`, those that run give up their blocks and are computed again
        from the tokens that they have: their answers do not change.
        """
        return self.engine.session.core.reset_prefix_cache(reset_running_requests)

    def stats(self) -> EngineStats:
        """What the engine is doing."""
        return EngineStats(
            **msgspec.structs.asdict(self.engine.session.core.counts()),
            **msgspec.structs.asdict(self.engine.loaded.program_counts()),
        )

    def wait_until_warm(self, timeout: float | None = None) -> bool:
        """Wait until every program is compiled; False if that takes more seconds than `timeout`.

        Requests are let in before that, unless the engine was given a seed or
        `compilation_config={"wait_for": "all"}`. Raises what the compiler has raised meanwhile.
        """
        return self.engine.loaded.wait_until_warm(timeout)

    def health(self, *, probe: bool = False) -> list[WorkerHealth]:
        """What is known of every process that runs steps. Raises EngineDead if one is lost.

        `probe` runs a step with nothing in it first, through every device. In a program of several
        processes all of them ask for it.
        """
        if probe:
            if self.engine.session.has_work:
                raise RequestError(
                    "health(probe=True) while requests run: their steps show as much. Finish them "
                    "first, or leave probe out."
                )
            self.engine.session.core.probe()
        return self.engine.session.core.health()

    def call_workers(self, method: str, **arguments: Any) -> list[Any]:
        """Do something in every process that runs steps; what each returns, by rank.

        "memory": bytes on their devices; "programs": what was compiled; "start_profile" (folder)
        and "stop_profile". In a program of several processes all of them make the call.
        """
        data = encoded_arguments(method, arguments)
        return decoded_answers(method, self.engine.session.core.call_workers(method, data))

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

    @property
    def ledger(self) -> CompileLedger:
        """Every compiled program, printable."""
        return self.engine.loaded.programs.ledger

    @property
    def mesh(self) -> jax.sharding.Mesh:
        """The devices of this engine, as its arrays are split over them.

        With data parallelism the first axis, `dp`, numbers the replicas.
        """
        return self.engine.placement.mesh

    @property
    def param_shardings(self) -> ParamShardings:
        """Parameter -> how it is split over the mesh, or over its stage's part of it; a picture in
        a notebook. Over `dp` it is not split: each replica has it."""
        places, leaves = self.engine.places, dict(named_parameters(self.engine.declared))
        return ParamShardings(
            {
                path: places.sharding(path, leaf.get_metadata()["axes"], leaf.shape)
                for path, leaf in leaves.items()
            },
            {path: leaf.shape for path, leaf in leaves.items()},
        )

    @property
    def tap_points(self) -> list[TapPoint]:
        """The places whose values `generate` can capture or change."""
        return tap_points(self.engine.model)

    def memory(self) -> MemoryPicture:
        """What this engine's memory consists of: printable, and a picture in notebooks."""
        return memory_picture(self.engine)

    @property
    def max_model_len(self) -> int:
        """The longest prompt and answer together, in tokens."""
        return self.engine.schedule.max_model_len

    @property
    def engine(self) -> Engine:
        """The engine's parts, while it lives."""
        if self._engine is None:
            raise EngineDead("this LLM was shut down. Create a new one.")
        return self._engine

    def shutdown(self) -> None:
        """Abort everything and give memory back. Calling it twice is harmless."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.session.core.shutdown()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()

    # --- how it is done --------------------------------------------------------------------

    def _render_chats(self, messages: Any, options: dict[str, Any]) -> list[Prompt]:
        refuse_later(
            "chat", {key: options[key] for key in options if key not in CHAT_OPTIONS}, CHAT_OPTIONS
        )
        options = {key: value for key, value in options.items() if key in CHAT_OPTIONS}
        how = checked_tokenization(options.pop("tokenization_kwargs", None))
        engine = self.engine
        if engine.tokenizer is None:
            raise RequestError("chat needs a tokenizer (skip_tokenizer_init=True was given).")
        if options.get("chat_template") is None:
            options["chat_template"] = engine.args.chat_template
        several = isinstance(messages, list | tuple) and all(map(is_conversation, messages[:1]))
        return [
            engine.session.input_processor.render_chat(
                render_chat(engine.tokenizer, one, **options), how
            )
            for one in (messages if several else [messages])
        ]

    def _tokenized(self, prompts: Any, tokenization_kwargs: Mapping[str, Any] | None) -> Any:
        """The prompts as they are, or rendered where the caller wants it done otherwise."""
        if tokenization_kwargs is None:
            return prompts
        render, how = self.engine.session.input_processor.render, tokenization_kwargs
        return [render(one, checked_tokenization(how)) for one in as_list(prompts)]

    def _token_ids(self, text: str) -> list[int]:
        return self.engine.session.input_processor.render(text).token_ids

    def _answer_rows(
        self, rows: list[list[int]], params: list[SamplingParams]
    ) -> list[RequestOutput]:
        return self._answer(rows, params, False)

    # A batch is made before anything of it is queued, and everything queued is noted in it: so
    # whatever happens on the way, Ctrl-C included, its requests can be ended.

    def _taps(self, capture: Any, intervene: Any) -> AbstractContextManager[int]:
        engine = self.engine
        return opened_taps(engine.loaded, engine.model, capture, intervene)

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
            self._batches.discard(batch.ids)

    def _stream(self, prompts: Any, sampling_params: Params) -> Generator[RequestOutput]:
        batch = Batch()
        try:
            self._submit(batch, prompts, sampling_params, False, streaming=True)
            return self._batches.stream(batch)
        except BaseException:
            self._batches.discard(batch.ids)
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
            self._batches.discard(batch.ids)
            raise
        return list(batch.ids)

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
        engine = self.engine
        engine.check_leaves()
        given = as_list(prompts)
        default = self.get_default_sampling_params()
        params = [
            default if one is None else one
            for one in spread("sampling_params", sampling_params, len(given))
        ]
        if not streaming:
            params = [final_only(one) for one in params]
        priorities = [level or 0 for level in spread("priority", priority, len(given))]
        with self._bar(use_tqdm, len(given), "Rendering prompts") as progress:
            rendered = []
            for prompt in given:
                done = isinstance(prompt, Prompt)
                ready = prompt if done else engine.session.input_processor.render(prompt)
                rendered.append(replace(ready, taps=taps))
                progress.update(1)
        self._batches.submit(batch, rendered, params, priorities)

    def _complete(self, batch: Batch, use_tqdm: Progress) -> list[RequestOutput]:
        """Run the engine until the batch is answered."""
        done: dict[str, RequestOutput] = {}
        speed = Speed()
        with self._bar(use_tqdm, len(batch.ids), "Processed prompts") as progress:
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


def refuse_later(owner: str, given: Mapping[str, Any], known: Iterable[str] = ()) -> None:
    """Refuse arguments that do not exist or whose feature is not built."""
    for name, value in given.items():
        if name not in LATER_ARGUMENTS:
            raise unknown_argument(owner, name, [*known, *ALWAYS_KNOWN])
        if value is not None and (name, value) != ("chat_template_content_format", "auto"):
            raise UnsupportedFeature(
                f"{owner}({name}=...): {LATER_ARGUMENTS[name]} is not built yet; leave {name} out."
            )


def final_only(params: SamplingParams) -> SamplingParams:
    """The same without outputs on the way, which nobody would see."""
    if not isinstance(params, SamplingParams):
        return params  # the intake says what is wrong with it
    return replace(params, output_kind=RequestOutputKind.FINAL_ONLY)


def is_conversation(item: Any) -> bool:
    """Whether an element of `messages` is itself a list of messages."""
    return isinstance(item, Sequence) and not isinstance(item, str)
