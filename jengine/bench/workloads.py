"""Benchmark workloads: prompts, and the output length of each.

In: a trace file, or the name of a workload and a seed. Out: items that every engine reads alike.
Must not import jax.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tokenizers import Tokenizer

from jengine.errors import ConfigError, nearest_name

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


# The first and last ids of a vocabulary, which are mostly special tokens, are not drawn.
MARGIN = 10
SHARED_PREFIX = 512


@dataclass(frozen=True)
class Item:
    """One request: greedy, exactly `max_tokens` output tokens."""

    prompt_token_ids: list[int]
    max_tokens: int


@dataclass(frozen=True)
class Workload:
    """Distribution of a workload's random requests, as tokens or as text."""

    meaning: str
    requests: int
    draw: Callable[[random.Random, Tokens], Drawn] | None = None
    say: Callable[[random.Random, Encode], Drawn] | None = None
    prefix: int = 0  # tokens that all prompts begin with


def of_lengths(
    lengths: Callable[[random.Random], tuple[int, int]], repeats: int = 1
) -> Callable[[random.Random, Tokens], Drawn]:
    """Random prompts of these lengths, each repeated, with these output lengths."""

    def draw(rng: random.Random, tokens: Tokens) -> Drawn:
        prompt, answer = lengths(rng)
        return tokens(prompt) * repeats, answer

    return draw


WORKLOADS = {
    "mixed": Workload(
        "prompts of 16 to 300 tokens, answers of 16 to 128", 64,
        of_lengths(lambda rng: (rng.randint(16, 300), rng.randint(16, 128))),
    ),
    "alone": Workload(
        "a prompt of 16 tokens, an answer of 128", 1, of_lengths(lambda _: (16, 128))
    ),
    "decode": Workload(
        "prompts of 100 tokens, answers of 64", 8, of_lengths(lambda _: (100, 64))
    ),
    "prefill": Workload("prompts of 900 tokens, answers of 2", 8, of_lengths(lambda _: (900, 2))),
    "shared": Workload(
        f"{SHARED_PREFIX} tokens that all prompts share, and 16 to 64 of their own", 64,
        of_lengths(lambda rng: (rng.randint(16, 64), rng.randint(16, 64))), prefix=SHARED_PREFIX,
    ),
    "repeat": Workload(
        "prompts that say 16 to 32 tokens four times, answers of 128", 32,
        of_lengths(lambda rng: (rng.randint(16, 32), 128), repeats=4),
    ),
    "edit": Workload(
        "files of 24 lines and the begun copy with renamed identifiers, answers of 128", 16,
        edited_file,
    ),
    "summary": Workload(
        "texts of 20 sentences and a begun summary that quotes them, answers of 96", 16,
        quoting_summary,
    ),
    "objects": Workload(
        "conversations that change a JSON object, in the demo model's words, answers of 96", 16,
        say=changed_object,
    ),
    "stories": Workload(
        "requests for a story, in the demo model's words, answers of 128", 16, say=begun_story,
    ),
}  # fmt: skip


def named(name: str) -> Workload:
    """Look up a workload by name."""
    if name not in WORKLOADS:
        raise ConfigError(
            f"--workload {name!r}: expected {', '.join(WORKLOADS)}, or a file with --trace."
            f"{nearest_name(name, WORKLOADS)}"
        )
    return WORKLOADS[name]


def generated(
    name: str,
    vocab_size: int,
    requests: int | None = None,
    seed: int = 0,
    encode: Encode | None = None,
) -> list[Item]:
    """Generate a workload's requests from a seed. `encode` is the model's tokenizer, for text
    workloads."""
    workload = named(name)
    rng = random.Random(seed)  # noqa: S311 - not for secrets
    margin = MARGIN if vocab_size > 4 * MARGIN else 0

    def tokens(count: int) -> list[int]:
        return [rng.randrange(margin, vocab_size - margin) for _ in range(count)]

    prefix = tokens(workload.prefix)
    items = []
    for _ in range(requests or workload.requests):
        if workload.draw is not None:
            prompt, answer = workload.draw(rng, tokens)
        else:
            assert workload.say is not None, "a workload draws tokens or text"
            if encode is None:
                raise ConfigError(
                    f"--workload {name} is text: expected a model with a tokenizer.json, such as "
                    "demo."
                )
            prompt, answer = workload.say(rng, encode)
        items.append(Item(prefix + prompt, answer))
    return items


def encoder_of(folder: Path | None) -> Encode | None:
    """The tokenizer's encode function for a model folder; None without tokenizer.json."""
    if folder is None or not (file := folder / "tokenizer.json").is_file():
        return None
    tokenizer = Tokenizer.from_file(str(file))
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def read_trace(path: Path) -> list[Item]:
    """Read JSON lines: {"prompt_token_ids": [...], "max_tokens": n}."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--trace {str(path)!r} cannot be read: {error}.") from error
    items = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
            items.append(
                Item([int(i) for i in found["prompt_token_ids"]], int(found["max_tokens"]))
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f'{path}, line {number}: expected {{"prompt_token_ids": [...], "max_tokens": n}} '
                f"({type(error).__name__}: {error})."
            ) from error
    if not items:
        raise ConfigError(f"{path} has no requests.")
    return items


def write_trace(items: list[Item], path: Path) -> None:
    """Write a trace in the format of `read_trace`."""
    path.write_text("".join(json.dumps(asdict(item)) + "\n" for item in items), encoding="utf-8")
