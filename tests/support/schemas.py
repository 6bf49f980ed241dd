"""Random JSON schemas whose values are small, for texts that must keep to them."""

from __future__ import annotations

import random
from typing import Any

WORDS = ("name", "size", "tags", "kind", "price", "when", "ok", "inner")


def random_schema(draw: random.Random, depth: int = 0) -> dict[str, Any]:
    """Return an object's schema with two to four fields, nested at most once."""
    names = draw.sample(WORDS, draw.randint(2, 4))
    return {
        "type": "object",
        "properties": {name: _value(draw, depth + 1) for name in names},
        "required": names,
        "additionalProperties": False,
    }


def _value(draw: random.Random, depth: int) -> dict[str, Any]:
    kinds = ["integer", "boolean", "enum", "null", "date", "text"]
    kinds += ["object", "array", "either"] if depth < 2 else []
    match draw.choice(kinds):
        case "integer":
            low = draw.randint(-5, 5)
            return {"type": "integer", "minimum": low, "maximum": low + draw.randint(0, 90)}
        case "enum":
            return {"enum": draw.sample(["red", "green", "blue", 1, 2, None, True], 3)}
        case "date":
            return {"type": "string", "pattern": "^20[0-9]{2}-[01][0-9]$"}
        case "text":
            return {"type": "string", "maxLength": draw.randint(1, 12)}
        case "object":
            return random_schema(draw, depth)
        case "array":
            return {"type": "array", "items": _value(draw, depth + 1), "minItems": 1, "maxItems": 2}
        case "either":
            return {"anyOf": [_value(draw, depth + 1), {"type": "null"}]}
        case kind:
            return {"type": kind}
