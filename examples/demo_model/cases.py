"""Prompts with what a good answer must do: the demo model's examination.

In: nothing but a seed. Out: Suites of Cases, each with a check of the completion.
Must not know: the model, the engine, tokens.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from examples.demo_model import records, smalltalk, stories, sums
from examples.demo_model.corpus import Turn
from examples.demo_model.greedy import Completion

__all__ = ["TARGETS", "Case", "Suite", "suites"]

TARGETS = {
    "one-digit addition in digits": 1.0,
    "one-digit addition in words": 0.95,
    "addition in digits": 0.95,
    "addition in words": 0.95,
    "valid JSON": 0.95,
    "JSON with the requested values": 0.95,
    "stories in whole sentences": 0.95,
    "plain stories in whole sentences": 0.95,
}


@dataclass(frozen=True)
class Case:
    """A conversation that waits for its answer (turns), or plain text to continue (plain)."""

    check: Callable[[Completion], bool]
    turns: tuple[Turn, ...] = ()
    plain: str = ""


class Suite(NamedTuple):
    """Cases that are counted together, each answered in at most `max_tokens` tokens."""

    name: str
    max_tokens: int
    cases: list[Case]


def suites(share: float = 1.0, seed: int = 0) -> list[Suite]:
    """All suites; `share` makes each of them smaller."""
    makers: list[tuple[str, int, int, Callable[[random.Random], Case]]] = [
        ("addition in digits", 24, 300, partial(sum_case, in_words=False, sign="+")),
        ("addition in words", 32, 300, partial(sum_case, in_words=True, sign="+")),
        ("subtraction in digits", 24, 100, partial(sum_case, in_words=False, sign="-")),
        ("subtraction in words", 32, 100, partial(sum_case, in_words=True, sign="-")),
        ("plain sums", 8, 100, plain_sum_case),
        ("valid JSON", 96, 300, partial(record_case, check=is_json)),
        ("JSON with the requested values", 96, 300, partial(record_case, check=is_record)),
        ("stories in whole sentences", 256, 100, partial(story_case, check=is_whole)),
        ("stories about who was asked for", 256, 100, partial(story_case, check=is_about)),
        ("plain stories in whole sentences", 256, 50, plain_story_case),
        ("a sum after a story and an object", 24, 100, long_chat_case),
        ("talk about itself", 64, 100, talk_case),
    ]
    made = []
    for name, max_tokens, count, maker in makers:
        # Both JSON suites, and both story suites, ask the same questions.
        rng = random.Random(f"{seed}/{max_tokens}/{count}")
        cases = [maker(rng) for _ in range(max(1, round(count * share)))]
        made.append(Suite(name, max_tokens, cases))
    return small_suites(share, seed) + made


def small_suites(share: float, seed: int) -> list[Suite]:
    """Every sum of one-digit numbers once. All are in training: there are only a hundred pairs."""
    pairs = [(left, right) for left in range(10) for right in range(10)]
    signs = {
        "addition": [sums.Sum(*pair) for pair in pairs],
        "subtraction": [sums.Sum(*pair, "-") for pair in pairs if pair[0] >= pair[1]],
    }
    made = []
    for task, problems in signs.items():
        for form, max_tokens in (("digits", 24), ("words", 32)):
            rng = random.Random(f"{seed}/{task}/{form}")
            drawn = rng.sample(problems, max(1, round(len(problems) * share)))
            cases = [one_sum_case(rng, problem, form == "words") for problem in drawn]
            made.append(Suite(f"one-digit {task} in {form}", max_tokens, cases))
    made.append(beside_suite(share, seed))
    return made


def beside_suite(share: float, seed: int) -> Suite:
    """Additions of a one-digit and a two-digit number, in either order."""
    rng = random.Random(f"{seed}/beside")
    drawn = []
    for _ in range(max(1, round(100 * share))):
        pair = [rng.randint(0, 9), rng.randint(10, 99)]
        rng.shuffle(pair)
        drawn.append(one_sum_case(rng, sums.Sum(*pair), rng.random() < 0.5))
    return Suite("one digit and two digits added", 32, drawn)


def ask(content: str) -> tuple[Turn, ...]:
    """A conversation of one question."""
    return (Turn("user", content),)


def says(text: str, completion: Completion) -> bool:
    """The completion is exactly this."""
    return completion.finished and completion.text.strip() == text


def sum_case(rng: random.Random, in_words: bool, sign: str) -> Case:
    return one_sum_case(rng, sums.draw(rng, held_out=True, sign=sign), in_words)


def one_sum_case(rng: random.Random, problem: sums.Sum, in_words: bool) -> Case:
    expected = sums.answer(problem, in_words)
    return Case(partial(says, expected), ask(sums.question(rng, problem, in_words)))


def plain_sum_case(rng: random.Random) -> Case:
    problem = sums.draw(rng, held_out=True, sign="+")
    asked, result = sums.halves(problem, in_words=False)
    return Case(partial(begins, result.strip() + "\n"), plain=asked)


def begins(text: str, completion: Completion) -> bool:
    """The completion starts with this line."""
    return (completion.text.lstrip(" ") + "\n").startswith(text)


def record_case(rng: random.Random, check: Callable[[records.Record, Completion], bool]) -> Case:
    record = records.draw(rng, held_out=True)
    return Case(partial(check, record), ask(records.request(rng, record)))


def is_json(record: records.Record, completion: Completion) -> bool:
    """The completion is one JSON object and nothing else."""
    try:
        return completion.finished and isinstance(json.loads(completion.text), dict)
    except ValueError:
        return False


def is_record(record: records.Record, completion: Completion) -> bool:
    """The completion is the object that was asked for."""
    return is_json(record, completion) and json.loads(completion.text) == record.value


def story_case(rng: random.Random, check: Callable[[stories.Story, Completion], bool]) -> Case:
    story = stories.draw(rng, held_out=True)
    request = stories.request(rng, story, is_open=False)
    return Case(partial(check, story), ask(request))


def is_whole(story: stories.Story, completion: Completion) -> bool:
    """The story ends by itself, in sentence punctuation, and does not go round in circles."""
    text = completion.text.strip()
    ends = completion.finished and text.endswith((".", "!", "?", '"'))
    return ends and 4 <= len(sentences(text)) == len(set(sentences(text)))


def is_about(story: stories.Story, completion: Completion) -> bool:
    """The story is about the hero that was asked for."""
    return story.hero in completion.text


def sentences(text: str) -> list[str]:
    """A text cut behind its full stops."""
    return [part.strip() for part in text.split(".") if part.strip(' "')]


def plain_story_case(rng: random.Random) -> Case:
    story = stories.draw(rng, held_out=True, starts_as_tale=True)
    words = story.text.split()
    return Case(partial(is_whole, story), plain=" ".join(words[: rng.randint(4, 12)]))


def long_chat_case(rng: random.Random) -> Case:
    story, record = stories.draw(rng, held_out=True), records.draw(rng, held_out=True)
    problem, in_words = sums.draw(rng, held_out=True, sign="+"), rng.random() < 0.5
    turns = (
        Turn("user", stories.request(rng, story)),
        Turn("assistant", story.text),
        Turn("user", records.request(rng, record)),
        Turn("assistant", records.answer(record)),
        Turn("user", sums.question(rng, problem, in_words)),
    )
    return Case(partial(says, sums.answer(problem, in_words)), turns)


def talk_case(rng: random.Random) -> Case:
    sayings, replies = rng.choice(smalltalk.TOPICS)
    return Case(partial(says_one_of, replies), ask(rng.choice(sayings)))


def says_one_of(texts: tuple[str, ...], completion: Completion) -> bool:
    """The completion is exactly one of these."""
    return any(says(text, completion) for text in texts)
