"""Schemas of the kinds that callers send, and a generator of more."""

from __future__ import annotations

import random
from typing import Any

NAMES = ["id", "name", "type", "count", "price", "tags", "note", "active", "city", "lines"]
PATTERNS = [r"^[A-Z]{2}\d{3}$", r"^#[0-9a-f]{6}$", "^a+b?$"]
LINK = {"$ref": "#/definitions/link"}
ZIP = {"type": "string", "pattern": r"^\d{5}$"}
STRING, INTEGER = {"type": "string"}, {"type": "integer"}


def obj(required: int = 99, /, **properties: Any) -> dict[str, Any]:
    names = list(properties)
    return {
        "type": "object",
        "properties": properties,
        "required": names[:required],
        "additionalProperties": False,
    }


def items(schema: Any, low: int = 0, high: int = 3) -> dict[str, Any]:
    return {"type": "array", "items": schema, "minItems": low, "maxItems": high}


TREE = {
    "$defs": {"node": obj(1, value=INTEGER, children=items({"$ref": "#/$defs/node"}))},
    "$ref": "#/$defs/node",
}
LINKED = {
    "definitions": {"link": {"anyOf": [{"type": "null"}, obj(next=LINK)]}},
    **LINK,
}  # fmt: skip
WRITTEN = [
    {"type": "object"},
    {"type": "array"},
    {},
    obj(name=STRING, age={"type": "integer", "minimum": 0, "maximum": 120}),
    obj(street=STRING, zip=ZIP, country={"enum": ["DE", "FR"]}),
    obj(id={"type": "string", "format": "uuid"}, at={"type": "string", "format": "date-time"}),
    obj(email={"type": "string", "pattern": r"^[a-z.]*@company\.com$"}),
    obj(note={"anyOf": [STRING, {"type": "null"}]}, rating={"type": ["number", "null"]}),
    obj(0, note={"type": "string", "minLength": 40}),
    obj(code={"type": "string", "minLength": 2, "maxLength": 4}, tags=items(STRING, 1, 3)),
    obj(kind={"const": "circle"}, radius={"type": "number", "exclusiveMinimum": 0}),
    {"anyOf": [obj(kind={"const": "a"}, x=INTEGER), obj(kind={"const": "b"}, y=STRING)]},
    obj(steps=items(obj(explanation=STRING, output=STRING), 1, 3), final_answer=STRING),
    obj(matrix=items(items({"type": "number"}, 2, 2), 2, 2)),
    obj(**{"with space": INTEGER, 'quote"d': INTEGER, "ünï": STRING, "$ref": STRING}),
    {"type": "object", "additionalProperties": INTEGER},
    {"type": "object", "properties": {"a": STRING}, "required": ["a"]},
    {"type": "object", "properties": {"not": STRING, "if": INTEGER}, "required": ["not"]},
    {"type": "array", "uniqueItems": False, "items": INTEGER, "maxItems": 4},
    {"type": "array", "prefixItems": [STRING, INTEGER], "items": False, "minItems": 2},
    {"enum": ["red", 5, None, True, {"a": [1]}]},
    {"type": "boolean"},
    {"allOf": [obj(a=INTEGER)]},
    TREE,
    LINKED,
]  # fmt: skip


def generated(seed: int) -> dict[str, Any]:
    """A schema drawn at random: objects and arrays around all kinds of values."""
    rng = random.Random(seed)
    return _object(rng, depth=rng.randrange(1, 4))


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(
        ["id", "name", "type", "count", "price", "tags", "note", "active", "city", "lines"], 4
    )
    properties = {name: _value(rng, depth - 1) for name in names[: rng.randrange(1, 5)]}
    return obj(rng.randrange(len(properties) + 1), **properties)


def _value(rng: random.Random, depth: int) -> dict[str, Any]:
    low = rng.randrange(-50, 50)
    leaves: list[Any] = [
        STRING,
        INTEGER,
        {"type": "number"},
        {"type": "boolean"},
        {"type": "string", "minLength": low % 5, "maxLength": 5 + low % 20},
        {"type": "string", "pattern": rng.choice(PATTERNS)},
        {"type": "string", "format": rng.choice(["date", "time", "ipv4", "uuid", "email"])},
        {"type": "integer", "minimum": low, "maximum": low + rng.randrange(200)},
        {"type": "number", "minimum": low / 2, "exclusiveMaximum": low / 2 + 7},
        {"enum": rng.sample(["new", "open", "done", "späť", "a b"], 3)},
        {"anyOf": [STRING, {"type": "null"}]},
        {"type": ["integer", "string", "null"]},
        {"const": rng.choice(["x", 1, None])},
    ]  # fmt: skip
    if depth <= 0 or rng.random() < 0.4:
        return rng.choice(leaves)
    if rng.random() < 0.5:
        return items(_value(rng, depth - 1), rng.randrange(2), 1 + rng.randrange(4))
    return _object(rng, depth)
