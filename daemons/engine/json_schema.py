"""What a JSON schema says that its grammar would not hold: such a schema is refused, not half kept.

A grammar is made by xgrammar, which leaves out what it does not know without a word. The lists are
what version 0.2.9 leaves out, found by texts that break each rule. ``oneOf`` is taken as ``anyOf``,
``format`` as a note where it is not known, both as most servers do.
"""

from __future__ import annotations

from collections.abc import Iterator

IGNORED = (
    "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies",
    "contains", "minContains", "maxContains", "$dynamicRef", "$recursiveRef",
)  # fmt: skip
NOTES = {
    "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly",
    "$comment", "$schema", "$id", "$defs", "definitions", "discriminator",
}  # fmt: skip
DEPTH_LIMIT = 64  # schemas within schemas; compiling grows with its cube
_VALUES = {"enum", "const", "default", "examples", "required", "type"}  # no schemas in there
_BY_NAME = {"properties", "patternProperties", "$defs", "definitions"}  # schemas by name


def unheld(schema: object) -> str:
    """Return the first thing that would not be held, "" when there is none.

    Args:
        schema: JSON values.
    """
    return next(_unheld(schema, 0), "")


def _unheld(schema: object, depth: int) -> Iterator[str]:
    if depth > DEPTH_LIMIT:
        yield f"schemas are nested more than {DEPTH_LIMIT} deep"
        return
    if isinstance(schema, list):
        for item in schema:
            yield from _unheld(item, depth)
    if not isinstance(schema, dict):
        return
    yield from (f"{key} is not supported" for key in IGNORED if key in schema)
    if schema.get("uniqueItems"):
        yield "uniqueItems is not supported"
    if "pattern" in schema and {"minLength", "maxLength"} & set(schema):
        yield "pattern beside minLength or maxLength is not supported"
    if isinstance(schema.get("allOf"), list) and len(schema["allOf"]) > 1:
        yield "allOf with more than one schema is not supported"
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference != "#" and not reference.startswith("#/"):
        yield f"$ref {reference[:64]!r}: only #/... is supported"
    for key in ("$ref", "anyOf", "oneOf", "allOf"):
        beside = set(schema) - NOTES - {key, "type"}
        if key in schema and beside:
            yield f"{min(beside)} beside {key} is not supported"
    for key, value in schema.items():
        if key in _BY_NAME and isinstance(value, dict):
            yield from _unheld(list(value.values()), depth + 1)
        elif key not in _VALUES:
            yield from _unheld(value, depth + 1)
