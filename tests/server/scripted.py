"""An executor for tests of the server: `--executor tests.server.scripted:Executor`.

It takes the sizes of a model folder and runs no model, so that an engine process starts without
loading or compiling. Answers follow from the prompt alone (`scripted_tokens`), or are texts that
`executor_options` give for prompts with a certain text in them. Steps may take time, and requests
may fail as a device would make them fail.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from jengine.config import CacheConfig, CacheGroup, CacheSpec, ScheduleConfig
from jengine.executor.calls import Outcome, encoded_answer
from jengine.executor.protocol import Capacity, EngineJob, WorkerHealth
from jengine.outputs import NOT_FINITE, StepOutput
from jengine.plan import NewRow, Plan, Wanted
from jengine.runner.report_types import DeviceMemory, ProgramCounts
from jengine.text.tokenizer import Tokenizer, load_tokenizer
from tests.executor.scripted import ScriptedExecutor
from tests.executor.scripted_rows import MirrorRow, advance, mark_of, next_token
from tests.executor.scripted_scores import scores

GROUP = CacheGroup(CacheSpec("full", 1, 8), (0,))


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`executor_options`; on a command line `--executor-options.step_seconds 0.01`."""

    start_seconds: float = 0.0  # that the start takes
    step_seconds: float = 0.0  # that a step takes
    blocks: int = 4097  # of the KV cache, the null block among them
    # Check each plan and what each row reads back from the cache. False: fast, for load.
    checks: bool = True
    # Answer prompts that hold one of these texts with another text, and then end.
    answers: dict[str, str] = {}
    not_finite: str | None = None  # prompts with this text have logits that are not finite
    no_such_token: str | None = None  # prompts with this text get a token that does not exist

    @property
    def reads_prompts(self) -> bool:
        """Whether answers depend on the text of prompts."""
        return bool(self.answers or self.not_finite or self.no_such_token)


class Answers:
    """What follows a prompt: made-up tokens, a text, or what a broken device would return."""

    def __init__(self, options: Options, tokenizer: Tokenizer | None, vocab_size: int) -> None:
        self.options = options
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self._texts = {text: self._ended(answer) for text, answer in options.answers.items()}
        self._broken = {
            options.not_finite: NOT_FINITE,
            options.no_such_token: vocab_size,
        }
        self._to = functools.lru_cache(1024)(self._found)

    def _ended(self, answer: str) -> list[int]:
        assert self.tokenizer is not None and self.tokenizer.eos_token_id is not None
        return [
            *self.tokenizer.encode(answer, add_special_tokens=False),
            self.tokenizer.eos_token_id,
        ]

    def to(self, prompt: Sequence[int]) -> list[int]:
        """The tokens that answer a prompt; the last one is repeated. Empty: made-up tokens."""
        return self._to(tuple(prompt)) if self.tokenizer else []

    def _found(self, prompt: tuple[int, ...]) -> list[int]:
        assert self.tokenizer is not None
        text = self.tokenizer.hf.decode(list(prompt))
        for part, token in self._broken.items():
            if part is not None and part in text:
                return [token]
        return next((found for part, found in self._texts.items() if part in text), [])


class CheckingScript(ScriptedExecutor):
    """Checks every plan; log-probabilities are made up."""

    def __init__(self, cache: CacheConfig, answers: Answers) -> None:
        super().__init__(cache, answers.vocab_size)
        self._answers = answers

    def _next_token(self, mirror: MirrorRow) -> int:
        given = self._answers.to(mirror.token_ids[: mirror.prompt_length])
        if not given:
            return super()._next_token(mirror)
        token = given[min(len(mirror.token_ids) - mirror.prompt_length, len(given) - 1)]
        mirror.failed = token == NOT_FINITE
        return token

    def run(self, plan: Plan) -> StepOutput:
        return self.submit(plan).output


class FastRow:
    """What a script without checks has to know of a row."""

    __slots__ = ("count", "given", "logprobs", "mark", "position")

    def __init__(self, new: NewRow, answers: Answers) -> None:
        self.mark = mark_of(new.token_ids)
        self.count = len(new.token_ids) - new.prompt_length
        self.given = answers.to(new.token_ids[: new.prompt_length])
        self.logprobs = new.sampling.logprobs
        self.position = len(new.token_ids)


class FastScript:
    """The same tokens, without checks: a few microseconds per row. It scores no prompts."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._rows: dict[int, FastRow] = {}

    def run(self, plan: Plan) -> StepOutput:
        assert plan.repeats == 1, "scripts without checks run single steps"
        for row in plan.released:
            del self._rows[row]
        for new in plan.new_rows:
            assert new.sampling.prompt_logprobs is None, "checks=false scores no prompts"
            self._rows[new.row] = FastRow(new, self._answers)
        sampled = [self._rows[entry.row] for entry in plan.entries if entry.wanted is Wanted.TOKENS]
        tokens = [self._sample(row) for row in sampled]
        columns = max((row.logprobs for row in sampled if row.logprobs is not None), default=None)
        found = None
        if columns is not None:
            rows = [
                scores([token], row.position - 1, columns)
                for token, row in zip(tokens, sampled, strict=True)
            ]
            found = type(rows[0])(*(np.stack(arrays) for arrays in zip(*rows, strict=True)))
        return StepOutput(np.array(tokens, np.int32).reshape(-1, 1), found)

    def _sample(self, row: FastRow) -> int:
        if row.given:
            token = row.given[min(row.count, len(row.given) - 1)]
        else:
            token = next_token(row.mark, self._answers.vocab_size)
        row.mark = advance(row.mark, token)
        row.count += 1
        row.position += 1
        return token


class Step:
    """A step that is over at a certain time."""

    has_left = True

    def __init__(self, output: StepOutput, ends: float) -> None:
        self._output = output
        self._ends = ends

    @property
    def ready(self) -> bool:
        return time.monotonic() >= self._ends

    def result(self) -> StepOutput:
        time.sleep(max(0.0, self._ends - time.monotonic()))
        return self._output


class Executor:
    """A device that runs one step after the other, and each in the time that was given."""

    def __init__(self, job: EngineJob) -> None:
        self.options = msgspec.convert(dict(job.options), Options, strict=False)
        folder = Path(job.settings["model"])
        config = json.loads((folder / "config.json").read_text())
        tokenizer = load_tokenizer(folder) if self.options.reads_prompts else None
        answers = Answers(self.options, tokenizer, config["vocab_size"])
        self.capacity = capacity_of(job, config, self.options)
        cache = self.capacity.cache
        self._script: CheckingScript | FastScript = (
            CheckingScript(cache, answers) if self.options.checks else FastScript(answers)
        )
        self._free_at = 0.0
        self.step = -1

    @classmethod
    def start(cls, job: EngineJob) -> Executor:
        made = cls(job)
        time.sleep(made.options.start_seconds)
        return made

    def submit(self, plan: Plan) -> Step:
        self.step = plan.step
        begins = max(time.monotonic(), self._free_at)
        self._free_at = begins + self.options.step_seconds
        return Step(self._script.run(plan), self._free_at)

    def update_weights(self, values: Any) -> None:
        raise AssertionError("a script has no parameters")

    def call_workers(self, method: str, arguments: bytes) -> list[bytes]:
        if method == "programs":
            return [encoded_answer(ProgramCounts(0, 0))]
        if method == "memory":
            return [encoded_answer(DeviceMemory("cpu", 1, 0, 0, 0, None, None))]
        return [msgspec.msgpack.encode(Outcome(b"", f"a script does not know {method}"))]

    def health(self) -> list[WorkerHealth]:
        return [WorkerHealth(0, "script", self.step, 0.0)]

    def shutdown(self) -> None:
        pass


def capacity_of(job: EngineJob, config: dict[str, Any], options: Options) -> Capacity:
    """The sizes that were asked for."""
    given = job.settings
    rows = given["max_num_seqs"] or 64
    length = min(given["max_model_len"] or 1024, config["max_position_embeddings"])
    schedule = ScheduleConfig(
        max_num_seqs=rows,
        max_num_batched_tokens=max(given["max_num_batched_tokens"] or 1024, rows + 1),
        max_model_len=length,
        policy=given["scheduling_policy"],
        prefill_tile=1,
        num_scheduler_steps=given["num_scheduler_steps"],
        vocab_size=config["vocab_size"],
    )
    block_size = given["block_size"] or 16
    blocks = given["num_gpu_blocks_override"] or options.blocks
    cache = CacheConfig((GROUP,), block_size, (blocks,), given["enable_prefix_caching"])
    return Capacity(schedule, cache, 1 if given["overlap"] else 0, "cpu")
