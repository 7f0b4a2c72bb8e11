"""Small JSON objects on request: one of the demo model's tasks.

In: a random generator and the wanted split. Out: a Record: a phrase that says what is wanted, and
the object. Must not know: chat markup, tokens, the other tasks.
"""

import json
import random
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

from examples.demo_model import names

__all__ = ["Record", "answer", "change", "draw", "is_held_out", "request"]

HELD_OUT_ONE_IN = 10

REQUESTS = (
    "Give me a JSON object for {phrase}.",
    "Give me a JSON object for {phrase}.",
    "Write a JSON object for {phrase}.",
    "Make a JSON object for {phrase}.",
    "Please write JSON for {phrase}.",
    "Can you give me a JSON object for {phrase}?",
    "Return a JSON object for {phrase}.",
    "I need a JSON object for {phrase}.",
    "Create a JSON object for {phrase}.",
    "JSON for {phrase}",
)
ITEMS = names.listed(
    "apple banana bicycle book bottle box cake candle car chair clock coat cup desk drum flower "
    "guitar hat jacket kite lamp lemon mirror orange pear pen pencil phone piano plate ring rope "
    "scarf shirt shoe sofa spoon table ticket umbrella vase watch"
)
TITLES = (
    ("Red", "Blue", "Lost", "Old", "Last", "Quiet", "Little", "Golden", "Hidden", "Long", "Brave"),
    ("Kite", "River", "Garden", "House", "Road", "Star", "Forest", "Island", "Clock", "Winter"),
)
FAMILIES = names.listed(
    "Hill Stone Wood Lake Reed Brook Field West Moore Price Bell Carter Young King"
)
DAYS = names.listed("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
EVENTS = names.listed(
    "meeting party concert lesson picnic match wedding dinner lunch walk class show"
)
SKIES = names.listed("sunny rainy cloudy windy snowy foggy stormy")
CHORES = (
    ("wash", "clean", "paint", "fix", "sell", "find", "move"),
    ("car", "house", "kitchen", "bicycle", "window", "table", "boat", "door", "garden"),
)
JOBS = names.listed(
    "baker teacher doctor farmer painter singer pilot writer nurse driver sailor cook"
)
GROUPS = {"colors": names.COLORS, "animals": names.ANIMALS, "items": ITEMS, "cities": names.CITIES}
FREE_FIELDS: dict[str, Callable[[random.Random], Any]] = {
    "name": names.person,
    "age": lambda rng: rng.randint(1, 99),
    "city": lambda rng: rng.choice(names.CITIES),
    "color": lambda rng: rng.choice(names.COLORS),
    "animal": lambda rng: rng.choice(names.ANIMALS),
    "size": lambda rng: rng.randint(1, 99),
    "price": lambda rng: rng.randint(1, 999),
    "count": lambda rng: rng.randint(1, 99),
    "day": lambda rng: rng.choice(DAYS),
    "job": lambda rng: rng.choice(JOBS),
    "item": lambda rng: rng.choice(ITEMS),
    "word": names.made_up_word,
}

CHANGES = ("Change the {} to {}.", "Now change the {} to {}.", "Make the {} {}.")
CHANGEABLE = ("name", "age", "city", "color", "price", "animal", "day", "job", "item")


class Record(NamedTuple):
    """What is asked for, in words, and the object that answers it."""

    schema: str
    phrase: str
    value: dict[str, Any]


def pet(rng: random.Random) -> Record:
    name, animal, age = names.person(rng), rng.choice(names.ANIMALS), rng.randint(1, 20)
    years = "1 year" if age == 1 else f"{age} years"
    phrase = f"{names.article(animal)} named {name} who is {years} old"
    return Record("pet", phrase, {"name": name, "animal": animal, "age": age})


def citizen(rng: random.Random) -> Record:
    name, age, city = names.person(rng), rng.randint(2, 99), rng.choice(names.CITIES)
    phrase = rng.choice(
        (
            f"a person named {name} who is {age} years old and lives in {city}",
            f"{name}, {age} years old, from {city}",
        )
    )
    return Record("citizen", phrase, {"name": name, "age": age, "city": city})


def worker(rng: random.Random) -> Record:
    name, job, city = names.person(rng), rng.choice(JOBS), rng.choice(names.CITIES)
    phrase = f"{names.article(job)} named {name} who works in {city}"
    return Record("worker", phrase, {"name": name, "job": job, "city": city})


def book(rng: random.Random) -> Record:
    title = f"The {rng.choice(TITLES[0])} {rng.choice(TITLES[1])}"
    author = f"{names.person(rng)} {rng.choice(FAMILIES)}"
    pages = rng.randint(20, 999)
    phrase = f'the book "{title}" by {author} with {pages} pages'
    return Record("book", phrase, {"title": title, "author": author, "pages": pages})


def order(rng: random.Random) -> Record:
    item, quantity = rng.choice(ITEMS), rng.randint(1, 99)
    phrase = f"an order with the item {item} and the quantity {quantity}"
    return Record("order", phrase, {"item": item, "quantity": quantity})


def product(rng: random.Random) -> Record:
    color, item, price = rng.choice(names.COLORS), rng.choice(ITEMS), rng.randint(1, 500)
    phrase = f"{names.article(color)} {item} that costs {price} dollars"
    return Record("product", phrase, {"item": item, "color": color, "price": price})


def event(rng: random.Random) -> Record:
    what, day, hour = rng.choice(EVENTS), rng.choice(DAYS), rng.randint(1, 23)
    phrase = f"{names.article(what)} on {day} at {hour}"
    return Record("event", phrase, {"event": what, "day": day, "hour": hour})


def weather(rng: random.Random) -> Record:
    city, sky, degrees = rng.choice(names.CITIES), rng.choice(SKIES), rng.randint(0, 40)
    phrase = f"{sky} weather in {city} at {degrees} degrees"
    return Record("weather", phrase, {"city": city, "weather": sky, "temperature": degrees})


def chore(rng: random.Random) -> Record:
    task, done = f"{rng.choice(CHORES[0])} the {rng.choice(CHORES[1])}", rng.random() < 0.5
    phrase = f"the task to {task}, which is {'done' if done else 'not done'}"
    return Record("chore", phrase, {"task": task, "done": done})


def listing(rng: random.Random) -> Record:
    key = rng.choice(list(GROUPS))
    values = rng.sample(GROUPS[key], rng.randint(2, 4))
    spoken = ", ".join(values[:-1]) + " and " + values[-1]
    return Record("listing", f"a list of {key}: {spoken}", {key: values})


def owner(rng: random.Random) -> Record:
    name, pet_name, animal = names.person(rng), names.person(rng), rng.choice(names.ANIMALS)
    phrase = f"a person named {name} who has {names.article(animal)} named {pet_name}"
    value = {"name": name, "pet": {"name": pet_name, "animal": animal}}
    return Record("owner", phrase, value)


def free(rng: random.Random) -> Record:
    keys = rng.sample(list(FREE_FIELDS), rng.randint(1, 4))
    value = {key: FREE_FIELDS[key](rng) for key in keys}
    spoken = [f"{key} {field}" for key, field in value.items()]
    joined = spoken[0] if len(spoken) == 1 else ", ".join(spoken[:-1]) + " and " + spoken[-1]
    return Record("free", f"something with {joined}", value)


SCHEMAS = (pet, citizen, worker, book, order, product, event, weather, chore, listing, owner, free)
WEIGHTS = (3, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3)


def is_held_out(record: Record) -> bool:
    """Whether a combination of values is kept from training."""
    key = record.schema + json.dumps(record.value, sort_keys=True)
    return zlib.crc32(key.encode()) % HELD_OUT_ONE_IN == 0


def draw(rng: random.Random, held_out: bool = False) -> Record:
    """Draw a record of the wanted split."""
    while True:
        record = rng.choices(SCHEMAS, WEIGHTS)[0](rng)
        if is_held_out(record) == held_out:
            return record


def change(rng: random.Random, record: Record, held_out: bool = False) -> tuple[str, Record] | None:
    """A follow-up that changes one plain field, or None if the record has none to change."""
    keys = [key for key in record.value if key in CHANGEABLE]
    if not keys:
        return None
    while True:
        key = rng.choice(keys)
        changed = record._replace(value={**record.value, key: FREE_FIELDS[key](rng)})
        if is_held_out(changed) == held_out:
            text = rng.choice(CHANGES).format(key, changed.value[key])
            return text, changed


def request(rng: random.Random, record: Record) -> str:
    """Ask for a record in one of many ways."""
    return rng.choice(REQUESTS).format(phrase=record.phrase)


def answer(record: Record) -> str:
    """The object as JSON text."""
    return json.dumps(record.value)
