"""Random mixes: what happens to an engine, and whether its answers are those of a plain one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

import jengine
from jengine import RequestOutput
from jengine.api.stats import EngineStats
from jengine.engine.core import EngineCore
from jengine.errors import RequestError
from tests.api.engines import is_idle
from tests.api.mix_answers import compare
from tests.api.mixes import FROM_FOLDER, Asked, Mix

POINTS = ["layers.0.output", "norm"]  # what is captured


class Course:
    """What happens to an engine: its random moves."""

    def __init__(self, mix: Mix, llm: jengine.LLM) -> None:
        self.mix, self.llm, self.draw = mix, llm, mix.draw
        self.asked: list[Asked] = []
        self.ids: list[str] = []
        self.ended: set[int] = set()  # the numbers of those that were aborted
        self.looked: list[tuple[Asked, RequestOutput]] = []
        self.version = FROM_FOLDER
        if mix.is_here:
            self._replace("finish")

    @property
    def open(self) -> list[int]:
        """The numbers of requests that have not ended."""
        ids = {answer.request_id for answer in self.llm.engine.session.open_answers}
        return [number for number, one in enumerate(self.ids) if one in ids]

    def run(self, moves: int) -> list[RequestOutput]:
        """Random moves, and the answers to all that was asked."""
        choices: list[tuple[Callable[[], None], int]] = [
            (self.add, 12), (self.step, 16), (self.abort, 6), (self.sleep, 2), (self.forget, 2),
            (self.reload, 1),
        ]  # fmt: skip
        if self.mix.is_here:
            choices += [(self.update, 2), (self.resize, 2), (self.look, 1)]
        if len(self.mix.adapters) > 1:
            choices += [(self.adapt, 2), (self.drop, 1)]
        functions, weights = zip(*choices, strict=True)
        for _ in range(moves):
            self.draw.choices(functions, weights)[0]()
        return self.llm.wait_for_completion(use_tqdm=False)

    def add(self) -> None:
        """Some requests come."""
        for _ in range(self.draw.choice([1, 2, 6])):
            asked = self.mix.request(self.version)
            self.asked.append(asked)
            self.ids += self.llm.enqueue(
                [asked.prompt], asked.params, asked.adapter, self.draw.randrange(3), use_tqdm=False
            )

    def step(self) -> None:
        """Some steps run."""
        for _ in range(self.draw.choice([1, 3, 12])):
            if self.llm.engine.session.has_work:
                self.llm._answering.batches._try_step(lambda: False)

    def abort(self) -> None:
        """Some requests end."""
        for number in self.draw.sample(self.open, min(len(self.open), self.draw.choice([1, 3]))):
            self._abort(number)

    def _abort(self, number: int) -> None:
        self.ended.add(number)
        self.llm.engine.session.abort(self.ids[number])

    def update(self) -> None:
        """Other parameters."""
        how: Any = self.draw.choice(["finish", "abort", "continue"])
        if how == "abort":
            self.ended.update(self.open)
        self._replace(how)

    def _replace(self, how: Any) -> None:
        if how == "continue":
            self._mix_versions()
        self.version = 0 if self.version else 1
        self.llm.update_params(self.mix.versions[self.version], on_inflight=how)

    def _mix_versions(self) -> None:
        """Those that are open go on with other parameters."""
        for number in self.open:
            self.asked[number] = self.asked[number]._replace(version=None)

    def reload(self) -> None:
        """Those of the folder."""
        if self.version != FROM_FOLDER:
            self._mix_versions()
        self.version = FROM_FOLDER
        self.llm.reload_weights()

    def sleep(self) -> None:
        """Sleep, requests that come meanwhile, and waking."""
        mode: Any = self.draw.choice(["abort", "wait", "keep"])
        level = self.draw.choice([0, 1, 1, 2])
        if mode == "abort":
            self.ended.update(self.open)
        self.llm.sleep(level, mode)
        if self.draw.random() < 0.5:
            self.add()
        if self.draw.random() < 0.3:
            self.abort()
        if level == 2:
            self.draw.choice(
                [self.reload, *[lambda: self._replace("continue")] * self.mix.is_here]
            )()
        assert self.llm.wake_up()

    def forget(self) -> None:
        """Cached prefixes are forgotten, if nothing uses them."""
        self.llm.reset_prefix_cache()

    def resize(self) -> None:
        """The cache has another size, if a request fits."""
        caches = self.llm.engine.loaded.state.caches
        size = sum(array.nbytes for array in jax.tree.leaves(caches))
        with suppress(RequestError):
            self.llm.resize_cache(int(min(size, 4e6) * self.draw.choice([0.6, 1, 1.5])))

    def look(self) -> None:
        """A request whose hidden states are captured, while the others run."""
        asked = self.mix.request(self.version)
        self.looked += [(asked, output) for output in answered(self.llm, asked, capture=POINTS)]

    def adapt(self) -> None:
        """A new adapter, or another one in the place of one."""
        number = self.draw.choice([len(self.mix.adapters), 1, 2])
        adapter = self.mix.adapter(number, self.draw.randrange(10, 1000))
        if self.draw.random() < 0.5:
            self.llm.add_lora(adapter)
        self.mix.adapters[number : number + 1] = [adapter]

    def drop(self) -> None:
        """An adapter is forgotten; whoever uses it goes on."""
        self.llm.remove_lora(self.draw.randrange(1, len(self.mix.adapters)))


def mixed(seed: int, folder: Path, tokenizer: Any, moves: int = 40) -> EngineStats:
    """Run the mix of this seed and check its answers, and that it leaves nothing. Returns what the
    engine counted."""
    mix = Mix(seed, folder, tokenizer)
    with mix.engine() as llm:
        course = Course(mix, llm)
        outputs = course.run(moves)
        stats = llm.stats()
        assert_nothing_is_left(llm)
    with mix.plain() as plain:
        for version in (FROM_FOLDER, 0, 1):
            if version != FROM_FOLDER:
                plain.update_params(mix.versions[version])
            for number, (asked, output) in enumerate(zip(course.asked, outputs, strict=True)):
                if asked.version == version:
                    (expected,) = answered(plain, in_place(asked))
                    compare(output, expected, number in course.ended, f"request {number}: {asked}")
            for asked, output in course.looked:
                if asked.version == version:
                    (expected,) = answered(plain, in_place(asked), capture=POINTS)
                    compare(output, expected, False, f"looked at: {asked}")
    return stats


def answered(llm: jengine.LLM, asked: Asked, **options: Any) -> list[RequestOutput]:
    """The answer to one request."""
    return llm.generate(
        [asked.prompt], asked.params, lora_request=asked.adapter, use_tqdm=False, **options
    )


def in_place(asked: Asked) -> Asked:
    """The request, for an engine that may have another adapter of the same number."""
    if asked.adapter is None:
        return asked
    return asked._replace(adapter=replace(asked.adapter, load_inplace=True))


def assert_nothing_is_left(llm: jengine.LLM) -> None:
    """No request, block, row or slot is in use."""
    assert is_idle(llm)
    if not llm.engine.args.multiprocess:
        core = llm.engine.in_process.core
        assert isinstance(core, EngineCore)
        core.drain()
        requests = core.scheduler._requests
        assert len(requests.free_rows) == core.scheduler.config.max_num_seqs
        assert not requests.waiting._lanes and not requests.waiting.num_parked
        core.scheduler.cache.check()
    assert llm.stats().cache_usage == 0
    assert llm.reset_prefix_cache()
