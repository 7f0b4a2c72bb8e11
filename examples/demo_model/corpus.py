"""The demo model's training text: conversations and plain documents, made from a seed.

In: a seeded random generator, and whether held-out material is wanted. Out: Documents, and their
rendering as segments of text of which some are learned and some only read.
Must not know: tokens, arrays, the model.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from examples.demo_model import names, records, smalltalk, stories, sums

__all__ = [
    "KINDS",
    "MIXES",
    "REFRESHER",
    "Document",
    "Mix",
    "Segment",
    "Turn",
    "chat_prompt",
    "documents",
    "render",
]

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

SYSTEM_MESSAGES = (
    "You are a helpful assistant.",
    "You are jengine's demo model.",
    "You are a friendly assistant. Keep your answers short.",
    "Answer the user.",
)


UNUSUAL_HEROES = (*records.ITEMS, *records.JOBS)
# One weight for each of KINDS.
Mix = tuple[float, ...]


class Turn(NamedTuple):
    """One message of a conversation."""

    role: str
    content: str


class Segment(NamedTuple):
    """A run of text; the loss counts fully where it is learned."""

    text: str
    learned: bool


@dataclass(frozen=True)
class Document:
    """Either a conversation (turns) or plain text (segments), never both."""

    kind: str
    turns: tuple[Turn, ...] = ()
    plain: tuple[Segment, ...] = ()


def render(source: Document) -> Iterator[Segment]:
    """The document as it is tokenized; must agree with the chat template."""
    if not source.turns:
        yield from source.plain
        yield Segment(END_OF_TEXT, True)
        return
    for turn in source.turns:
        yield Segment(f"{TURN_START}{turn.role}\n", False)
        yield Segment(turn.content + TURN_END, turn.role == "assistant")
        yield Segment("\n", False)
    yield Segment(END_OF_TEXT, False)


def chat_prompt(turns: Sequence[Turn]) -> str:
    """A conversation that waits for the assistant; must agree with the chat template."""
    told = "".join(f"{TURN_START}{turn.role}\n{turn.content}{TURN_END}\n" for turn in turns)
    return f"{told}{TURN_START}assistant\n"


def documents(
    seed: int | str, held_out: bool = False, mix: Mix | None = None
) -> Iterator[Document]:
    """An endless stream of documents; the same seed and mix give the same stream."""
    rng = random.Random(f"{seed}/{'held out' if held_out else 'training'}")
    while True:
        kind = rng.choices(list(KINDS), mix or REFRESHER)[0]
        yield KINDS[kind](rng, held_out, kind)


def worksheet(rng: random.Random, held_out: bool, kind: str) -> Document:
    """Plain text: sums, one per line, in digits or in words or in both; the results are learned."""
    return sheet(rng, held_out, kind, rng.choice(("digits", "words", "both")))


def words_worksheet(rng: random.Random, held_out: bool, kind: str) -> Document:
    """A worksheet in words."""
    return sheet(rng, held_out, kind, "words")


def sheet(rng: random.Random, held_out: bool, kind: str, form: str) -> Document:
    """Lines of sums in one form."""
    lines: list[Segment] = []
    for _ in range(rng.randint(1, 8)):
        problem = sums.draw(rng, held_out)
        in_words = form == "words" or (form == "both" and rng.random() < 0.5)
        for written in (in_words, not in_words) if form == "both" else (in_words,):
            asked, result = sums.halves(problem, written)
            lines += [Segment(asked, False), Segment(result + "\n", True)]
    return Document(kind, plain=tuple(lines))


def tale(rng: random.Random, held_out: bool, kind: str) -> Document:
    """Plain text: a story that most often starts with "Once upon a time"."""
    text = stories.draw(rng, held_out, starts_as_tale=rng.random() < 0.7).text
    return Document(kind, plain=(Segment(text, True),))


def sums_chat(rng: random.Random, held_out: bool, kind: str) -> Document:
    """A conversation of one to four sums."""
    pairs = [pair for _ in range(rng.choice((1, 2, 2, 3))) for pair in ask_sum(rng, held_out)]
    return conversation(rng, kind, pairs)


def small_sums_chat(rng: random.Random, held_out: bool, kind: str) -> Document:
    """A conversation of one to four sums with one-digit numbers, of which none is held out."""
    pairs: list[tuple[str, str]] = []
    for _ in range(rng.choice((1, 2, 3, 4))):
        problem = sums.draw(rng, held_out) if held_out else sums.draw_small(rng)
        in_words = rng.random() < 0.4
        asked = sums.question(rng, problem, in_words)
        if pairs and rng.random() < 0.3:
            asked = f"And {sums.operation(problem, in_words)}?"
        pairs.append((asked, sums.answer(problem, in_words)))
    return conversation(rng, kind, pairs)


def records_chat(rng: random.Random, held_out: bool, kind: str) -> Document:
    """A conversation of one to three JSON objects."""
    pairs = [pair for _ in range(rng.choice((1, 1, 2))) for pair in ask_record(rng, held_out)]
    return conversation(rng, kind, pairs)


def story_chat(rng: random.Random, held_out: bool, kind: str) -> Document:
    """A conversation of one story, sometimes with a question about it."""
    return conversation(rng, kind, ask_story(rng, held_out))


def fable_chat(rng: random.Random, held_out: bool, kind: str) -> Document:
    """A story about a hero that is in no list: the model has to copy it from the request."""
    known = rng.random() < 0.5
    hero = rng.choice(UNUSUAL_HEROES) if known else names.made_up_word(rng)
    story = stories.draw(rng, held_out, hero=hero)
    return conversation(rng, kind, [(stories.request(rng, story, is_open=False), story.text)])


def mixed_chat(rng: random.Random, held_out: bool, kind: str) -> Document:
    """A conversation that greets, wanders between the tasks and may say goodbye."""
    pairs = [smalltalk.greeting(rng)] if rng.random() < 0.5 else []
    askers = (ask_sum, ask_record, ask_story, ask_smalltalk)
    for _ in range(rng.choice((1, 2, 2, 3, 4))):
        pairs += rng.choices(askers, (3, 3, 2, 5))[0](rng, held_out)
    if rng.random() < 0.25:
        pairs.append(smalltalk.farewell(rng))
    return conversation(rng, kind, pairs)


def conversation(rng: random.Random, kind: str, pairs: list[tuple[str, str]]) -> Document:
    """Turn pairs of user and assistant into a Document, now and then under a system message."""
    turns = []
    if rng.random() < 0.15:
        turns.append(Turn("system", rng.choice(SYSTEM_MESSAGES)))
    for asked, answered in pairs:
        turns += [Turn("user", careless(rng, asked)), Turn("assistant", answered)]
    return Document(kind, tuple(turns))


def careless(rng: random.Random, text: str) -> str:
    """Users do not always write capitals and full stops."""
    kind = rng.random()
    if kind < 0.06:
        return text[0].lower() + text[1:]
    if kind < 0.12:
        return text.rstrip(".?!")
    if kind < 0.16:
        return text[0].lower() + text[1:].rstrip(".?!")
    return text


def ask_sum(rng: random.Random, held_out: bool) -> list[tuple[str, str]]:
    """A sum, sometimes followed by a second one that builds on it."""
    problem, in_words = sums.draw(rng, held_out), rng.random() < 0.5
    pairs = [(sums.question(rng, problem, in_words), sums.answer(problem, in_words))]
    if rng.random() < 0.3:
        again = sums.draw(rng, held_out, sign=problem.sign)
        asked = sums.operation(again, in_words)
        pairs.append((f"And {asked}?", sums.answer(again, in_words)))
    if not in_words and problem.result < 90 and rng.random() < 0.15:
        onward = sums.Sum(problem.result, rng.randint(1, 9))
        pairs.append((f"Now add {onward.right}.", sums.answer(onward, False)))
    return pairs


def ask_record(rng: random.Random, held_out: bool) -> list[tuple[str, str]]:
    """A JSON object, sometimes followed by a change to it."""
    record = records.draw(rng, held_out)
    pairs = [(records.request(rng, record), records.answer(record))]
    if rng.random() < 0.2 and (changed := records.change(rng, record, held_out)):
        pairs.append((changed[0], records.answer(changed[1])))
    return pairs


def ask_story(rng: random.Random, held_out: bool) -> list[tuple[str, str]]:
    """A story, sometimes followed by a question about it or a wish for another."""
    story = stories.draw(rng, held_out)
    pairs = [(stories.request(rng, story), story.text)]
    kind = rng.random()
    if kind < 0.1:
        question = rng.choice(("Who was the story about?", "Who is in the story?"))
        pairs.append((question, f"The story was about {story.name}, the {story.hero}."))
    elif kind < 0.2:
        wish = rng.choice(("Another one, please.", "Tell me another story.", "One more, please."))
        pairs.append((wish, stories.draw(rng, held_out).text))
    return pairs


def ask_smalltalk(rng: random.Random, held_out: bool) -> list[tuple[str, str]]:
    """A question about the model, or one that it cannot answer."""
    return [smalltalk.draw(rng)]


Maker = Callable[[random.Random, bool, str], Document]

KINDS: dict[str, Maker] = {
    "worksheet": worksheet,
    "tale": tale,
    "sums": sums_chat,
    "records": records_chat,
    "story": story_chat,
    "mixed": mixed_chat,
    "words": words_worksheet,
    "fable": fable_chat,
    "small sums": small_sums_chat,
}

# From which step on, how often each of KINDS is drawn. Dense worksheets come first, since sums take
# longest to learn; then everything that is asked for. Sums in words lag behind those in digits, so
# the last mix practises them.
MIXES: tuple[tuple[int, Mix], ...] = (
    (0, (3.6, 0.9, 2.4, 2.7, 0.8, 0.9, 0.0, 0.0, 0.0)),
    (2000, (2.0, 0.6, 2.4, 4.0, 1.5, 1.4, 0.0, 0.0, 0.0)),
    (3500, (0.8, 0.6, 2.0, 3.0, 2.0, 1.4, 2.5, 0.0, 0.0)),
)
# After that a refresher: what is still weak, stories about any hero that is asked for, and sums of
# one-digit numbers, which the mixes above hardly ever draw.
REFRESHER: Mix = (0.5, 0.3, 2.0, 4.0, 0.8, 1.4, 2.0, 1.0, 3.0)
