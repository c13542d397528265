"""Random JSON schemas whose values are all short: nested, with enums, bounded arrays, optional members, references."""

import random
from typing import Any

Schema = dict[str, Any]

_WORDS = ["a", "bc", "name", "é", "two words", 'with "quotes"', "x-1"]


def random_schema(seed: int) -> Schema:
    """An object's."""
    draw = random.Random(seed)
    definitions = {f"d{number}": _value(draw, 1, []) for number in range(draw.randint(0, 2))}
    schema = _object(draw, draw.randint(1, 3), list(definitions))
    return {"$defs": definitions, **schema} if definitions else schema


def _value(draw: random.Random, depth: int, names: list[str]) -> Schema:
    simple = [_string, _integer, _number, _enum, _constant, _pattern]
    nested = [_object, _array, _any, _object, _array]
    if names and draw.random() < 0.25:
        return {"$ref": f"#/$defs/{draw.choice(names)}"}
    if depth <= 0 or draw.random() < 0.5:
        return draw.choice(simple)(draw)
    return draw.choice(nested)(draw, depth - 1, names)


def _object(draw: random.Random, depth: int, names: list[str]) -> Schema:
    keys = draw.sample(_WORDS, k=draw.randint(1, 4))
    return {
        "type": "object",
        "properties": {key: _value(draw, depth, names) for key in keys},
        "required": [key for key in keys if draw.random() < 0.6],
        "additionalProperties": False,
    }


def _array(draw: random.Random, depth: int, names: list[str]) -> Schema:
    least = draw.randint(0, 2)
    return {
        "type": "array",
        "items": _value(draw, depth, names),
        "minItems": least,
        "maxItems": least + draw.randint(0, 2),
    }


def _any(draw: random.Random, depth: int, names: list[str]) -> Schema:
    return {"anyOf": [_value(draw, depth, names), {"type": "null"}]}


def _string(draw: random.Random) -> Schema:
    least = draw.randint(0, 3)
    return {"type": "string", "minLength": least, "maxLength": least + draw.randint(0, 6)}


def _pattern(draw: random.Random) -> Schema:
    return {"type": "string", "pattern": draw.choice(["^[a-c]{2,5}$", "^[0-9]{4}-[0-9]{2}$", "^(yes|no)!?$"])}


def _integer(draw: random.Random) -> Schema:
    least = draw.randint(-300, 300)
    return {"type": "integer", "minimum": least, "maximum": least + draw.randint(0, 400)}


def _number(draw: random.Random) -> Schema:
    return {"type": "number", "multipleOf": 0.5, "minimum": 0, "maximum": draw.randint(1, 50)}


def _enum(draw: random.Random) -> Schema:
    return {"enum": draw.sample([*_WORDS, 3, -1.5, True, None, ["l", 1]], k=draw.randint(1, 4))}


def _constant(draw: random.Random) -> Schema:
    return {"const": draw.choice(["fixed", 17, False, {"k": [1, 2]}])}
