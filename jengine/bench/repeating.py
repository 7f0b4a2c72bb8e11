"""Workloads whose answers repeat their prompt (n-gram speculation): file edits, quotes, JSON
updates.

In: random numbers, and what draws tokens or turns text into tokens. Out: a prompt and the length of
its answer; the same seed gives the same ones. Must not import jax.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence

# Draws so many tokens of the vocabulary.
Tokens = Callable[[int], list[int]]
# Turns text into tokens.
Encode = Callable[[str], Sequence[int]]
Drawn = tuple[list[int], int]  # a prompt, and how many tokens its answer has

NAMES = ("Anna", "Ben", "Clara", "Daniel", "Emma", "Felix", "Grace", "Hugo", "Ida", "Jack")
CITIES = ("Oslo", "Paris", "Rome", "Berlin", "Madrid", "Vienna", "London", "Dublin")
JOBS = ("baker", "teacher", "doctor", "farmer", "painter", "singer", "pilot", "writer")


def edited_file(rng: random.Random, tokens: Tokens) -> Drawn:
    """A 24-line file over few identifiers with a request to rename two, then the first lines of the
    edited file, which the answer continues."""
    names, words, [end], new = tokens(16), tokens(8), tokens(1), tokens(2)
    file = []
    for _ in range(24):
        line = [rng.choice(words), rng.choice(names), *rng.choices(names + words, k=6), end]
        file.append([*line[: rng.randint(5, 8)], end])
    renamed = dict(zip(rng.sample(names, 2), new, strict=True))
    order = [*tokens(6), *(token for pair in renamed.items() for token in pair), end]
    begun = [[renamed.get(token, token) for token in line] for line in file[:6]]
    return [*flat(file), *order, *flat(begun)], 128


def quoting_summary(rng: random.Random, tokens: Tokens) -> Drawn:
    """A text of 20 sentences, then the first sentences of a summary, which quotes it."""
    things, [end] = tokens(20), tokens(1)
    text = [
        [*rng.choices(things, k=rng.randint(3, 6)), *tokens(rng.randint(3, 6)), end]
        for _ in range(20)
    ]
    quoted = sorted(rng.sample(range(len(text)), 4))
    return [*flat(text), *tokens(6), end, *flat([text[at] for at in quoted])], 96


def flat(lines: list[list[int]]) -> list[int]:
    """Concatenate the tokens of all lines."""
    return [token for line in lines for token in line]


def changed_object(rng: random.Random, encode: Encode) -> Drawn:
    """A chat in the demo model's vocabulary: a JSON object, and changes to it, each answered by the
    whole object."""
    value = {"name": rng.choice(NAMES), "job": rng.choice(JOBS), "city": rng.choice(CITIES)}
    asked = "Give me a JSON object for a {job} named {name} who works in {city}.".format(**value)
    parts = [turn("user", asked), turn("assistant", json.dumps(value))]
    for _ in range(2):
        value, asked = changed(rng, value)
        parts += [turn("user", asked), turn("assistant", json.dumps(value))]
    parts.append(turn("user", changed(rng, value)[1]) + "<|im_start|>assistant\n")
    return list(encode("".join(parts))), 96


def changed(rng: random.Random, value: dict[str, str]) -> tuple[dict[str, str], str]:
    """The object with another value, and the instruction for that change."""
    field, choices = rng.choice((("name", NAMES), ("job", JOBS), ("city", CITIES)))
    new = rng.choice([one for one in choices if one != value[field]])
    return {**value, field: new}, f"Change the {field} to {new}."


def turn(role: str, text: str) -> str:
    """A message in the demo model's chat template."""
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def begun_story(rng: random.Random, encode: Encode) -> Drawn:
    """A request for a story, in the demo model's vocabulary."""
    name, job = rng.choice(NAMES), rng.choice(JOBS)
    asked = turn("user", f"Tell me a story about {name} the {job}.")
    return list(encode(asked + "<|im_start|>assistant\n")), 128
