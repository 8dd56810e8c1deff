"""Write `examples/data/`: about 1,000 small conversations in four formats, with a held-out part each.

Everything is generated from the tables below with one seed, so that the data is ours and can be made again at any
time. The tasks are small enough for a tiny, randomly initialised model to learn in a minute. A held-out question is
never asked in the training part, in no format; what it asks for is there in other words.

    python tools/make_examples.py [FOLDER]
"""

from __future__ import annotations

import gzip
import io
import json
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

Row = dict[str, Any]
Turn = tuple[str, str]
Item = TypeVar("Item")

SEED = 20261130
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
OPPOSITES = {
    "hot": "cold", "big": "small", "fast": "slow", "early": "late", "light": "dark", "open": "closed", "full": "empty",
    "hard": "soft", "high": "low", "new": "old", "rich": "poor", "strong": "weak", "wet": "dry", "loud": "quiet",
    "near": "far", "thick": "thin", "wide": "narrow", "happy": "sad", "sharp": "blunt", "rough": "smooth", "deep": "shallow",
    "clean": "dirty", "warm": "cool",
}  # fmt: skip
PLURALS = {
    "mouse": "mice", "goose": "geese", "child": "children", "leaf": "leaves", "knife": "knives", "tooth": "teeth",
    "foot": "feet", "wolf": "wolves", "box": "boxes", "city": "cities", "lamp": "lamps", "river": "rivers",
    "bench": "benches", "story": "stories", "potato": "potatoes", "sheep": "sheep", "key": "keys", "bus": "buses",
}  # fmt: skip
ANIMALS = {
    "Rolo": ("fox", "berries", "east house"), "Mira": ("otter", "fish", "river house"), "Tobi": ("goat", "hay", "north barn"),
    "Luna": ("owl", "seeds", "old tower"), "Bruno": ("bear", "honey", "west cave"), "Pia": ("parrot", "nuts", "glass hall"),
    "Otis": ("turtle", "salad", "south pond"), "Nilo": ("hippo", "grass", "river house"), "Sana": ("lynx", "meat", "west cave"),
    "Kiko": ("penguin", "fish", "ice room"), "Alma": ("llama", "hay", "north barn"), "Fido": ("badger", "roots", "east house"),
    "Zora": ("zebra", "grass", "long meadow"), "Milo": ("beaver", "bark", "south pond"), "Ines": ("stork", "frogs", "old tower"),
    "Hugo": ("camel", "dates", "sand yard"),
}  # fmt: skip
CITIES = [
    "Lisbon", "Oslo", "Cairo", "Lima", "Kyoto", "Dublin", "Quito", "Tunis", "Vienna", "Riga", "Bern", "Porto", "Accra", "Hanoi",
    "Perth", "Turin",
]  # fmt: skip
SKIES = ["sunny", "cloudy", "rainy", "windy", "foggy"]
SYSTEMS = ["You are a short and friendly helper.", "Answer in one sentence.", "You work at the Fernhill zoo. Answer briefly."]
WEATHER_TOOL: Row = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"type": "string"}},
            "required": ["city", "unit"],
        },
    },
}


def days() -> Iterator[Turn]:
    """Neighbours in the week and in the year."""
    after = ("Which {} comes after {}?", "What {} follows {}?", "Name the {} after {}.", "What is the next {} after {}?")
    before = ("Which {} comes before {}?", "Name the {} before {}.", "What is the last {} before {}?")
    for names, kind in ((DAYS, "day"), (MONTHS, "month")):
        for index, name in enumerate(names):
            yield from ((ask.format(kind, name), f"{names[(index + 1) % len(names)]}.") for ask in after)
            yield from ((ask.format(kind, name), f"{names[index - 1]}.") for ask in before)


def facts() -> Iterator[Turn]:
    """Who lives in the Fernhill zoo, what they eat and where they sleep."""
    for name, (kind, food, home) in ANIMALS.items():
        for ask in (f"What animal is {name}?", f"Who is {name}?", f"Tell me what kind of animal {name} is."):
            yield ask, f"The {kind}."
        for ask in (f"What does {name} eat?", f"What do you feed {name}?", f"Which food does {name} like?"):
            yield ask, f"{food.title()}."
        for ask in (f"Where does {name} sleep?", f"Where can I find {name}?", f"In which place does {name} live?"):
            yield ask, f"In the {home}."


def transformations() -> Iterator[tuple[str, str, str]]:
    """Instruction, input and output of small changes to a word."""
    opposite = (
        "Give the opposite of the word.",
        "Write the opposite.",
        "Which word means the opposite?",
        "Turn the word around.",
    )
    plural = ("Write the plural of the word.", "Give the plural.", "Change the word to mean more than one.", "Say it for two.")
    for asks, words in ((opposite, OPPOSITES), (plural, PLURALS)):
        yield from ((ask, word, output) for word, output in words.items() for ask in asks)


def word_prompts() -> Iterator[Row]:
    """Prompts that a word continues."""
    for word, opposite in OPPOSITES.items():
        for prompt in (f"The opposite of {word} is", f"Not {word} but"):
            yield {"prompt": prompt, "completion": f" {opposite}."}
    for word, plural in PLURALS.items():
        for prompt in (f"One {word}, two", f"The plural of {word} is"):
            yield {"prompt": prompt, "completion": f" {plural}."}


def question_prompt(turn: Turn) -> Row:
    """A question and its answer as a prompt that a plain text continues."""
    return {"prompt": f"Question: {turn[0]}\nAnswer:", "completion": f" {turn[1]}"}


def weather_chats(rng: random.Random) -> Iterator[Row]:
    """A question, a tool call with JSON arguments, its result and the answer."""
    asks = ("What is the weather in {} in {}?", "Tell me the weather in {}. Use {}.")
    for city in CITIES:
        for unit in ("celsius", "fahrenheit"):
            for ask in asks:
                sky, degrees = rng.choice(SKIES), rng.randrange(5, 30) if unit == "celsius" else rng.randrange(40, 90)
                call = {"type": "function", "function": {"name": "get_weather", "arguments": {"city": city, "unit": unit}}}
                result = json.dumps({"city": city, "sky": sky, "degrees": degrees, "unit": unit})
                yield {
                    "messages": [
                        {"role": "user", "content": ask.format(city, unit)},
                        {"role": "assistant", "content": "", "tool_calls": [call]},
                        {"role": "tool", "name": "get_weather", "content": result},
                        {"role": "assistant", "content": f"It is {sky} in {city}, {degrees} degrees {unit}."},
                    ],
                    "tools": [WEATHER_TOOL],
                }


def sum_chats(rng: random.Random) -> Iterator[Row]:
    """Sums of one-digit numbers with the reasoning spelt out."""
    for a in range(2, 10):
        for b in range(2, 10):
            reasoning = (
                f"{a} and {10 - a} is 10, {b} less {10 - a} is {a + b - 10}." if a + b > 10 else f"{a} and {b} stays within 10."
            )
            ask = rng.choice((f"What is {a} plus {b}?", f"Add {a} and {b}."))
            answer = {"role": "assistant", "reasoning_content": reasoning, "content": f"It is {a + b}."}
            system = [{"role": "system", "content": SYSTEMS[1]}] if rng.random() < 0.5 else []
            yield {"messages": [*system, {"role": "user", "content": ask}, answer]}


def corrected_chats() -> Iterator[Row]:
    """A wrong answer that is context only, then its correction."""
    for index, name in enumerate(DAYS):
        wrong, right = DAYS[index - 1], DAYS[(index + 1) % 7]
        yield {
            "messages": [
                {"role": "user", "content": f"Quick, which day is after {name}?"},
                {"role": "assistant", "content": f"{wrong}.", "train": False},
                {"role": "user", "content": "That is not right."},
                {"role": "assistant", "content": f"Sorry, {right}."},
            ]
        }


def dialogs(rng: random.Random, turns: Iterable[Turn], most: int) -> Iterator[list[Turn]]:
    """Conversations of one to `most` questions; every given question is used once."""
    rest = list(turns)
    rng.shuffle(rest)
    while rest:
        size = rng.randint(1, most)
        yield rest[:size]
        rest = rest[size:]


def message_row(rng: random.Random, dialog: list[Turn]) -> Row:
    """The dialog in the messages format, half of the time with a system prompt."""
    system = [{"role": "system", "content": rng.choice(SYSTEMS)}] if rng.random() < 0.5 else []
    turns = [{"role": role, "content": text} for turn in dialog for role, text in zip(("user", "assistant"), turn, strict=True)]
    return {"messages": system + turns}


def sharegpt_row(dialog: list[Turn]) -> Row:
    """The dialog in the ShareGPT format."""
    return {
        "conversations": [
            {"from": who, "value": text} for turn in dialog for who, text in zip(("human", "gpt"), turn, strict=True)
        ]
    }


def split(rng: random.Random, items: Iterable[Item], held_out: int) -> tuple[list[Item], list[Item]]:
    """Shuffle and cut: the training part and the held-out part."""
    rest = list(items)
    rng.shuffle(rest)
    return rest[held_out:], rest[:held_out]


def make() -> dict[str, list[Row]]:
    """All rows of all files, by path under the data folder."""
    rng = random.Random(SEED)
    seen, held = split(rng, [*days(), *facts()], 40)
    chats, chats_held = split(rng, [*weather_chats(rng), *sum_chats(rng), *corrected_chats()], 24)
    chats += [message_row(rng, dialog) for dialog in dialogs(rng, seen, 3)]
    chats_held += [message_row(rng, dialog) for dialog in dialogs(rng, held, 3)]
    tasks, tasks_held = split(
        rng, [{"instruction": ask, "input": word, "output": out} for ask, word, out in transformations()], 30
    )
    texts, texts_held = split(rng, [*word_prompts()], 12)
    rng.shuffle(chats)
    files = {
        "train/chats.jsonl": chats,
        "train/dialogs.json": [sharegpt_row(dialog) for dialog in dialogs(rng, [*seen, *seen], 3)],
        "train/tasks.parquet": tasks,
        "train/completions.jsonl.zst": texts + [question_prompt(turn) for turn in seen],
        "heldout/chats.jsonl": chats_held,
        "heldout/dialogs.json": [sharegpt_row(dialog) for dialog in dialogs(rng, held, 3)],
        "heldout/tasks.jsonl.gz": tasks_held,
        "heldout/completions.jsonl.zst": texts_held + [question_prompt(turn) for turn in held],
    }
    spoil(files)
    return files


def spoil(files: dict[str, list[Row]]) -> None:
    """Real data is never clean: a few rows that cannot be used, each of which is reported with its reason."""
    files["train/chats.jsonl"][100:100] = [
        {"messages": [{"role": "user", "content": "Is anybody there?"}]},
        {"messages": "not a list"},
    ]
    files["train/dialogs.json"][50:50] = [{"conversations": []}]
    files["train/tasks.parquet"][70:70] = [{"instruction": "Write the opposite.", "input": "", "output": ""}]


def as_jsonl(rows: list[Row]) -> bytes:
    """One JSON object a line."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def as_json(rows: list[Row]) -> bytes:
    """One JSON array, a row a line."""
    return ("[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n").encode()


def as_parquet(rows: list[Row]) -> bytes:
    """A Parquet file."""
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue()


def as_gzip(rows: list[Row]) -> bytes:
    """JSON lines, gzip."""
    return gzip.compress(as_jsonl(rows), mtime=0)


def as_zstd(rows: list[Row]) -> bytes:
    """JSON lines, zstd."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(as_jsonl(rows))
    return bytes(sink.getvalue().to_pybytes())


ENCODERS: dict[str, Callable[[list[Row]], bytes]] = {
    ".jsonl": as_jsonl,
    ".json": as_json,
    ".parquet": as_parquet,
    ".gz": as_gzip,
    ".zst": as_zstd,
}


def main(folder: Path) -> None:
    """Write every file under `folder`."""
    for name, rows in make().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(ENCODERS[path.suffix](rows))
        print(f"{path}: {len(rows)} rows, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "examples" / "data")
