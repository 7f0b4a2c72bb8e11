"""Short stories from a grammar of plots: one of the demo model's tasks.

In: a random generator and the wanted split. Out: a Story: its hero and its text.
Must not know: chat markup, tokens, the other tasks.
"""

import random
from collections.abc import Sequence
from typing import NamedTuple

from examples.demo_model import names
from examples.demo_model.plots import (
    ANIMALS,
    ENDINGS,
    HELD_OUT_HEROES,
    HEROES,
    MANNERS,
    MEN,
    OPENING_WEIGHTS,
    OPENINGS,
    PLOTS,
    SLOTS,
    WOMEN,
)

__all__ = ["HELD_OUT_HEROES", "Story", "draw", "request"]

REQUESTS = (
    "Tell me a story about {hero}.",
    "Tell me a story about {hero}.",
    "Tell me a short story about {hero}.",
    "Please tell me a story about {hero}.",
    "Can you tell me a story about {hero}?",
    "Write a story about {hero}.",
    "Write a short story about {hero}.",
    "I would like to hear a story about {hero}.",
    "Do you know a story about {hero}?",
    "A story about {hero}, please.",
)
OPEN_REQUESTS = (
    "Tell me a story.",
    "Tell me a story, please.",
    "Can you tell me a story?",
    "Please tell me a short story.",
    "Write a short story.",
    "Do you know a story?",
    "I want to hear a story.",
)


class Story(NamedTuple):
    """A story and who it is about; `adjective` and `name` belong to the hero."""

    hero: str
    adjective: str
    name: str
    text: str


def draw(
    rng: random.Random,
    held_out: bool = False,
    *,
    starts_as_tale: bool = False,
    hero: str | None = None,
) -> Story:
    """Draw a story; a tale starts with "Once upon a time". No `hero`: one of the wanted split."""
    heroes = HELD_OUT_HEROES if held_out else HEROES
    slots = cast(rng, heroes if hero is None else (hero,))
    count = 3 if starts_as_tale else len(OPENINGS)
    opening = rng.choices(OPENINGS[:count], OPENING_WEIGHTS[:count])[0]
    plot = PLOTS[rng.choice(list(PLOTS))]
    beats = [opening, rng.choice(MANNERS), *(rng.choice(beat) for beat in plot)]
    beats.append(rng.choice([line for line in ENDINGS if fits(line, beats)]))
    sentences = [line.format_map(slots) for line in beats if line]
    return Story(slots["hero"], slots["adjective"], slots["name"], " ".join(sentences))


def fits(ending: str, beats: list[str]) -> bool:
    """Whether an ending names the friend only if the story has one."""
    return "friend_name" not in ending or any("friend_name" in line for line in beats)


def cast(rng: random.Random, heroes: Sequence[str]) -> dict[str, str]:
    """Choose the hero, the friend and everything else a story needs."""
    slots = {key: rng.choice(words) for key, words in SLOTS.items()}
    hero = rng.choice(heroes)
    friend = rng.choice([animal for animal in ANIMALS if animal != hero])
    name, he, his, _ = character(rng, hero)
    friend_name, _, friend_his, friend_him = character(rng)
    while friend_name == name:
        friend_name, _, friend_his, friend_him = character(rng)
    described = f"{slots['adjective']} {hero}"
    a_friend = names.article(friend)
    slots.update(hero=hero, name=name, he=he, his=his, He=he.capitalize(), His=his.capitalize())
    slots.update(a_hero=names.article(described))
    slots.update(friend_name=friend_name, friend_his=friend_his, friend_him=friend_him)
    slots.update(a_friend=a_friend, a_friend_upper=a_friend.capitalize())
    slots.update(treasure_a=names.article(slots["treasure"]))
    others = [word for word in SLOTS["adjective"] if word != slots["adjective"]]
    slots["adjective_two"] = rng.choice(others)
    return slots


def character(rng: random.Random, kind: str = "") -> tuple[str, str, str, str]:
    """A name with the pronouns that go with it."""
    female = kind in WOMEN or (kind not in MEN and rng.random() < 0.5)
    if female:
        return rng.choice(names.GIRLS), "she", "her", "her"
    return rng.choice(names.BOYS), "he", "his", "him"


def request(rng: random.Random, story: Story, *, is_open: bool | None = None) -> str:
    """Ask for a story in one of many ways; an open request does not say what it is about."""
    kind = rng.random()
    if is_open or (is_open is None and kind < 0.15):
        return rng.choice(OPEN_REQUESTS)
    hero = names.article(story.hero)
    if kind > 0.6:
        hero = names.article(f"{story.adjective} {story.hero}")
    if kind > 0.85:
        hero += f" named {story.name}"
    return rng.choice(REQUESTS).format(hero=hero)
