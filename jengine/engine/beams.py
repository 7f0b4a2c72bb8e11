"""Beam search of one prompt; knows nothing of how requests run.

In: outputs of one-token requests. Out: the next step's requests, and finally the best sequences.

Each step requests one token per beam, with log-probabilities of twice the beam width. A beam finds
its full blocks by prefix hash and starts from a copy of the last partial block or recurrent state
(`kvcache/partial_blocks.py`): a request marked `forks` publishes its last block to others so
marked, and `Plan.forks` copies blocks on the device before the step
(`runner/transfers/fork_runner.py`). So each beam computes one token, packed as a decode row
(`runner/plans/packing.py`). No copies in pipelines, with drafts, with replicas in joint steps, or
where steps return experts; there a beam recomputes its partial block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from jengine.beam_search import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
from jengine.engine.beam_guide import BeamGuide, GuidedBeam
from jengine.engine.limits import Limits
from jengine.errors import RequestError, UnsupportedFeature
from jengine.logprobs import LogprobTables, NoTexts, StepLogprobs
from jengine.outputs import RequestOutput
from jengine.prompts import TokensPrompt
from jengine.sampling_params import SamplingParams
from jengine.text.token_texts import TokenTexts
from jengine.text.tokenizer import Tokenizer

ENDED_EARLY = ("abort", "error")


class Beam(NamedTuple):
    """A sequence during the search, with the log-probabilities of each new token."""

    tokens: list[int]
    scores: tuple[StepLogprobs, ...] = ()
    cum_logprob: float = 0.0
    finish_reason: str | None = None
    guide: GuidedBeam | None = None


class Candidate(NamedTuple):
    """A beam extended by one token."""

    beam: Beam
    token: int
    cum_logprob: float
    score: StepLogprobs

    def as_beam(self, *, guided: bool) -> Beam:
        """The extended beam; `guided` also advances its grammar state."""
        guide = self.beam.guide.after(self.token) if guided and self.beam.guide else None
        scores = (*self.beam.scores, self.score)
        return Beam([*self.beam.tokens, self.token], scores, self.cum_logprob, None, guide)


class BeamSearch:
    """Run all requests of `asked` and pass their outputs to `take` until `asked` is empty, then
    read `output`."""

    def __init__(
        self,
        prompt: TokensPrompt,
        params: BeamSearchParams,
        limits: Limits,
        tokenizer: Tokenizer | None,
        guide: BeamGuide | None = None,
    ) -> None:
        """`guide`, for structured outputs, knows the grammar."""
        if "prompt_embeds" in prompt:
            raise UnsupportedFeature("beam_search: prompts as embeddings are not supported.")
        check_search(prompt, params, limits)
        self.prompt = prompt
        self.params = params
        self.failure: RequestOutput | None = None  # the output that ended the search early
        self._tokenizer = tokenizer
        ends = [tokenizer.eos_token_id] if tokenizer else list(limits.eos_token_ids[:1])
        self._eos = ends[0] if ends else None
        tokens = list(prompt["prompt_token_ids"])
        self._beams = [Beam(tokens, guide=guide.start() if guide else None)]
        self._completed: list[Beam] = []
        self._steps = 0

    def asked(self) -> list[tuple[TokensPrompt, SamplingParams]]:
        """One-token requests for all live beams; empty when the search is over."""
        if self._steps == self.params.max_tokens:
            return []
        going = []
        for beam in self._beams:
            if beam.guide is None or beam.guide.allowed is not None:
                going.append(beam)
            elif beam.scores:  # its grammar has ended
                self._completed.append(beam)
        self._beams = going
        return [(self._prompt_of(beam), self._sampling_of(beam)) for beam in going]

    def _prompt_of(self, beam: Beam) -> TokensPrompt:
        prompt = TokensPrompt(prompt_token_ids=beam.tokens, forks=True)
        if "cache_salt" in self.prompt:
            prompt["cache_salt"] = self.prompt["cache_salt"]
        if "media" in self.prompt:
            prompt["media"] = self.prompt["media"]
        return prompt

    def _sampling_of(self, beam: Beam) -> SamplingParams:
        return SamplingParams(
            max_tokens=1,
            temperature=self.params.temperature,
            logprobs=self.params.candidates,
            flat_logprobs=True,
            detokenize=False,
            allowed_token_ids=beam.guide.few_allowed if beam.guide else None,
        )

    def take(self, outputs: Sequence[RequestOutput]) -> None:
        """Select the next beams from the outputs of the last `asked` requests."""
        for output in outputs:
            reason = output.outputs[0].finish_reason
            if reason in ENDED_EARLY:
                self._end(output, str(reason))
                return
        found: list[Candidate] = []
        for beam, output in zip(self._beams, outputs, strict=True):
            scores = output.outputs[0].logprobs
            assert isinstance(scores, StepLogprobs), "asked for as arrays"
            found += self._candidates(beam, scores)
        ended = [one for one in found if self._ends(one.token)]
        going = [one for one in found if not self._ends(one.token)]
        self._completed += [one.as_beam(guided=False) for one in ended]
        # No more than the best can be among the best at the end.
        self._completed = self._best_of(self._completed)
        going.sort(
            key=lambda one: self._score(one.cum_logprob, len(one.beam.tokens) + 1, one.token),
            reverse=True,
        )
        self._beams = [one.as_beam(guided=True) for one in going[: self.params.beam_width]]
        self._steps += 1

    def _candidates(self, beam: Beam, score: StepLogprobs) -> list[Candidate]:
        """Extensions by the sampled and top tokens, without duplicates and as far as the grammar
        allows."""
        pairs = dict(zip(score.ids[0].tolist(), score.values[0].tolist(), strict=True))
        return [
            Candidate(beam, token, beam.cum_logprob + value, score)
            for token, value in pairs.items()
            if beam.guide is None or beam.guide.allows(token)
        ]

    def _end(self, output: RequestOutput, reason: str) -> None:
        self._completed += [beam._replace(finish_reason=reason) for beam in self._beams]
        self._beams, self.failure = [], output

    def _ends(self, token: int) -> bool:
        return token == self._eos and not self.params.ignore_eos

    def _score(self, cum_logprob: float, length: int, last: int) -> float:
        """Ranking score, length-normalised: the prompt counts in the length, a final EOS does
        not."""
        counted = max(length - (last == self._eos), 1)
        return cum_logprob / counted**self.params.length_penalty

    def _best_of(self, beams: Sequence[Beam]) -> list[Beam]:
        def score(beam: Beam) -> float:
            return self._score(beam.cum_logprob, len(beam.tokens), beam.tokens[-1])

        return sorted(beams, key=score, reverse=True)[: self.params.beam_width]

    def output(self) -> BeamSearchOutput:
        """The best sequences, finished or not."""
        best = self._best_of([*self._completed, *self._beams])
        return BeamSearchOutput([self._sequence(beam) for beam in best])

    def _sequence(self, beam: Beam) -> BeamSearchSequence:
        begin, tokenizer = len(self.prompt["prompt_token_ids"]), self._tokenizer
        texts = NoTexts() if tokenizer is None else TokenTexts(tokenizer)
        return BeamSearchSequence(
            tokens=beam.tokens,
            logprobs=LogprobTables(
                StepLogprobs.joined(list(beam.scores)), beam.tokens, begin, texts
            ),
            cum_logprob=beam.cum_logprob,
            text=self.text(beam.tokens),
            finish_reason=beam.finish_reason,
            orig_prompt=self.prompt,
        )

    def text(self, tokens: Sequence[int]) -> str | None:
        if self._tokenizer is None:
            return None
        skip = self.params.skip_special_tokens
        return self._tokenizer.decode(tokens, skip_special_tokens=skip)

    def has_ended(self, sequence: BeamSearchSequence) -> bool:
        """Whether a sequence ended with EOS."""
        begin = len(self.prompt["prompt_token_ids"])
        return len(sequence.tokens) > begin and self._ends(sequence.tokens[-1])


def check_search(prompt: TokensPrompt, params: BeamSearchParams, limits: Limits) -> None:
    """Raise RequestError for a search that would fail later: context length, number of logprobs."""
    length = len(prompt["prompt_token_ids"])
    if length + params.max_tokens > limits.max_model_len:
        raise RequestError(
            f"beam search: a prompt of {length} tokens and max_tokens={params.max_tokens} exceed "
            f"max_model_len={limits.max_model_len}. Lower max_tokens, or shorten the prompt."
        )
    if params.candidates > limits.most_logprobs:
        raise RequestError(
            f"beam_width={params.beam_width} compares {params.candidates} log-probabilities per "
            f"beam, but max_logprobs={limits.max_logprobs}. Lower it, or create the engine with a "
            "larger max_logprobs (-1: the whole vocabulary)."
        )
