"""LLM: the engine in the caller's process and thread. The class that most users need.

Prompts in, RequestOutputs out, in the order of the prompts. It starts no threads, ports or
processes. Several threads may share one LLM: their requests run in the same batches.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

import jengine
from jengine.api import arrays
from jengine.api.answering import Progress
from jengine.api.arguments import Loras, Params, chat_options, refuse_others, with_media_options
from jengine.api.arrays import GenerateResult, Scores
from jengine.api.beams import beam_search
from jengine.api.inside import InsideEngine
from jengine.api.profile_steps import profiled
from jengine.api.profile_table import ProfileTable
from jengine.api.tapping import Interventions
from jengine.beam_search import BeamSearchOutput, BeamSearchParams
from jengine.errors import RequestError
from jengine.outputs import RequestOutput
from jengine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from jengine import Comparison


class LLM(InsideEngine):
    """An offline engine for one model. `LLM("demo")` works anywhere.

    `model` is a local folder in Hugging Face format, or "demo". All other settings are keyword
    arguments with vLLM's names; see `jengine.EngineArgs`.
    """

    # --- answers ---------------------------------------------------------------------------

    def generate(
        self,
        prompts: Any,
        sampling_params: Params = None,
        *,
        use_tqdm: Progress = None,
        lora_request: Loras = None,
        priority: int | Sequence[int] | None = None,
        capture: str | Sequence[str] | None = None,
        intervene: Interventions | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> list[RequestOutput]:
        """Answer prompts; outputs come in the order of the prompts.

        A prompt is a string, a list of token ids, a dict with `prompt` or `prompt_token_ids`, or a
        list of these. Parameters and adapters: one for all, or one per prompt.

        `capture` names tap points (see `llm.tap_points`; * stands for any layer), and
        `output.captured` then holds f32 [tokens that ran, width] for each.

        `intervene` maps tap points to a `Patch`, a `Steer`, a pure function f(x) or f(x,
        positions), or a pair (f, arrays) of f(x, arrays) or f(x, positions, arrays). `x` is
        f32 [tokens, width] for all tokens of the step, other requests' and padding included, in
        unspecified order; only the results for the tokens of these prompts are used.
        `positions` is i32 [tokens], each token's place in its own sequence from the prompt's first
        token, so `positions == 3` is the prompt's fourth token. A function is compiled into the
        step: pass the same object again to reuse its program. Its arrays, a pytree, are operands:
        other arrays of the same shapes compile nothing.

        `tokenization_kwargs` are options of text.tokenization, such as truncate_prompt_tokens, and
        `mm_processor_kwargs` those of the model's processor, for prompts that name none.
        """
        refuse_others("generate", others)
        self._front.session.input_processor.check_generates()
        prompts = with_media_options(prompts, mm_processor_kwargs)
        prompts = self._front.tokenized(prompts, tokenization_kwargs)
        with self._taps(capture, intervene) as taps:
            return self._answering.answer(
                prompts, sampling_params, use_tqdm, priority, taps, lora_request
            )

    def chat(
        self,
        messages: Any,
        sampling_params: Params = None,
        use_tqdm: Progress = None,
        lora_request: Loras = None,
        priority: int | Sequence[int] | None = None,
        *in_order: Any,
        capture: str | Sequence[str] | None = None,
        intervene: Interventions | None = None,
        **options: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation (a list of messages) or several.

        Options, which may follow `priority` in this order: chat_template,
        chat_template_content_format, add_generation_prompt, continue_final_message, tools,
        chat_template_kwargs, tokenization_kwargs, mm_processor_kwargs. `capture` and `intervene`
        as for `generate`.
        """
        prompts = self._front.chat_prompts(messages, chat_options("chat", options, in_order))
        with self._taps(capture, intervene) as taps:
            return self._answering.answer(
                prompts, sampling_params, use_tqdm, priority, taps, lora_request
            )

    def stream(
        self,
        prompts: Any,
        sampling_params: Params = None,
        *,
        lora_request: Loras = None,
        **others: Any,
    ) -> Generator[RequestOutput]:
        """Yield outputs as tokens arrive, for all prompts interleaved.

        With `output_kind=RequestOutputKind.DELTA` each holds only new tokens. Closing the generator
        aborts unfinished requests.
        """
        refuse_others("stream", others)
        return self._answering.stream(prompts, sampling_params, lora_request)

    def stream_chat(
        self,
        messages: Any,
        sampling_params: Params = None,
        *,
        lora_request: Loras = None,
        **options: Any,
    ) -> Generator[RequestOutput]:
        """`stream` for conversations; options as for `chat`."""
        prompts = self._front.chat_prompts(messages, chat_options("stream_chat", options))
        return self._answering.stream(prompts, sampling_params, lora_request)

    def enqueue(
        self,
        prompts: Any,
        sampling_params: Params = None,
        lora_request: Loras = None,
        priority: int | Sequence[int] | None = None,
        use_tqdm: Progress = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> list[str]:
        """Queue prompts without running them; `wait_for_completion` answers them."""
        refuse_others("enqueue", others)
        prompts = with_media_options(prompts, mm_processor_kwargs)
        prompts = self._front.tokenized(prompts, tokenization_kwargs)
        return self._answering.enqueue(prompts, sampling_params, use_tqdm, priority, lora_request)

    def enqueue_chat(
        self, messages: Any, sampling_params: Params = None, use_tqdm: Progress = None,
        lora_request: Loras = None, priority: int | Sequence[int] | None = None,
        *in_order: Any, **options: Any,
    ) -> list[str]:  # fmt: skip
        """`enqueue` for conversations; options as for `chat`."""
        how = chat_options("enqueue_chat", options, in_order)
        prompts = self._front.chat_prompts(messages, how)
        return self._answering.enqueue(prompts, sampling_params, use_tqdm, priority, lora_request)

    def wait_for_completion(
        self, output_type: type | tuple[type, ...] | None = None, *, use_tqdm: Progress = None
    ) -> list[RequestOutput]:
        """Answer everything queued, in the order of queueing.

        `output_type`: as vLLM's scripts give it; here always RequestOutput.
        """
        if output_type is not None and not issubclass(RequestOutput, output_type):
            raise RequestError(f"output_type={output_type!r}: every output is a RequestOutput.")
        return self._answering.complete_queued(use_tqdm)

    def beam_search(
        self,
        prompts: Any,
        params: BeamSearchParams,
        lora_request: Loras = None,
        use_tqdm: Progress = False,
        concurrency_limit: int | None = None,
    ) -> list[BeamSearchOutput]:
        """The likeliest sequences of each prompt, best first; tokens and text include the prompt.

        In each step every beam is extended by its 2 * beam_width likeliest tokens, and the best of
        all extensions are kept. Only the tokenizer's EOS ends a beam. The score is the
        log-probability divided by length ** length_penalty, where the length includes the prompt.
        At most `concurrency_limit` prompts are searched at once. Beams share their KV cache blocks.
        """
        session = self._front.session
        self.engine.check_leaves()
        return beam_search(
            session, self._answering, prompts, params, use_tqdm, concurrency_limit, lora_request
        )

    def profile(
        self, folder: str | Path, steps: int = 10, batch: int | None = None
    ) -> ProfileTable:
        """Record some decode steps of a full batch, or of `batch` requests, into a folder.

        The result prints as a table of the operations that took longest. The folder has the trace
        for TensorBoard or Perfetto, in which each step bears its number and its bucket. Requests
        that run meanwhile are recorded too.
        """
        return profiled(self._front, self._answer_rows, str(Path(folder).absolute()), steps, batch)

    # --- arrays ----------------------------------------------------------------------------

    def compute_logprobs(
        self, token_ids: Any, lengths: Any = None, top_k: int = 0
    ) -> jax.Array | Scores:
        """log p(token | tokens before it) of whole sequences, f32 [B, T]; 0 for the first token.

        `token_ids` is a list of lists, or an array [B, T] with lengths [B], or a list of texts,
        which are tokenized as prompts are. With top_k > 0 the result also has the likeliest tokens
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
        """Answer rows of tokens (or texts). Returns tokens, lengths and log-probabilities as
        arrays; with n > 1 the n answers of a row are adjacent."""
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

    def _answer_rows(
        self, rows: list[list[int]], params: list[SamplingParams]
    ) -> list[RequestOutput]:
        return self._answering.answer(rows, params, False)
