"""What is said under a grammar is of the grammar, and is the same split and unsplit."""

from __future__ import annotations

import functools
import json
import random
import re
from typing import Any

import jsonschema
import pytest
from tokenizers import Tokenizer

from daemons.engine.config import EngineConfig
from daemons.engine.engine import Engine
from daemons.engine.step import Item, Sequence
from daemons.protocol.generate import Distribution, Grammar, GrammarKind, Sampling
from daemons.protocol.ids import RoomKey
from tests.support.checkpoints import EOS, POSITIONS, checkpoint
from tests.support.engines import Talk, begin, hand_over, prefill, step

pytest.importorskip("xgrammar")
PROMPT = (70, 71, 72, 73, 74)
CONFIG = EngineConfig(device="cpu", dtype="fp32", kv_tokens=8192)
SCHEMAS = 100
IP = r"((25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(25[0-5]|2[0-4]\d|1?\d?\d)"
SUMS = 'root ::= term (("+" | "-") term){0,6}\nterm ::= [0-9]{1,3} | "(" root ")"'


@functools.cache
def engine_of(copy: int) -> Engine:
    """Return an engine; another ``copy`` has a pool of its own."""
    return Engine.load(CONFIG, checkpoint("llama"))


@functools.cache
def words() -> Tokenizer:
    return Tokenizer.from_file(str(checkpoint("llama") / "tokenizer.json"))


def quiet() -> tuple[tuple[int, float], ...]:
    """Return biases against white space, with which a random model would fill its context."""
    return tuple((words().encode(space).ids[0], -100.0) for space in " \n\t\r")


def asking(kind: GrammarKind, text: str, **more: Any) -> Sampling:
    defaults: dict[str, Any] = {"max_tokens": 400, "eos_token_ids": (EOS,), "logit_bias": quiet()}
    return Sampling(grammar=Grammar(kind, text), **(defaults | more))


def talk_to_its_end(engine: Engine, talks: list[Talk]) -> None:
    """Step until each has ended; a random model ends far within its context."""
    assert len(PROMPT) + 400 <= POSITIONS
    while live := [talk for talk in talks if not has_ended(talk)]:
        assert all(len(talk.said) < 400 for talk in live)
        step(engine, live, 32)


def has_ended(talk: Talk) -> bool:
    return bool(talk.said) and talk.tokens[-1] in talk.sampling.ending_token_ids


def said(talk: Talk) -> str:
    return words().decode(talk.tokens[:-1], skip_special_tokens=False)


def talks_of(samplings: list[Sampling], first_page: int) -> list[Talk]:
    pages = CONFIG.kv_tokens // 2 // 16 // len(samplings)
    return [
        Talk(
            RoomKey(n + 1, 1),
            PROMPT,
            tuple(range(first_page + n * pages, first_page + (n + 1) * pages)),
            sampling,
        )
        for n, sampling in enumerate(samplings)
    ]


def both_ways(samplings: list[Sampling]) -> list[str]:
    """Return what is said, once it was said in one batch and by another engine after token 1."""
    source, target = engine_of(0), engine_of(1)
    whole, split = talks_of(samplings, 0), talks_of(samplings, 256)
    begin(source, whole)
    talk_to_its_end(source, whole)
    for talk, there in zip(split, whole, strict=True):
        prefill(source, talk)
        hand_over(source, target, talk, there.pages)
    begin(target, split)
    talk_to_its_end(target, split)
    for one, other in zip(split, whole, strict=True):
        assert one.tokens == other.tokens
        logs = [[token.logprob for token in talk.said] for talk in (one, other)]
        assert logs[0] == pytest.approx(logs[1], abs=1e-4)  # batches of other sizes round otherwise
    return [said(talk) for talk in whole]


def drawn_schema(draw: random.Random, depth: int = 0) -> dict[str, Any]:
    kinds = ["integer", "number", "string", "boolean", "null", "enum", "pattern"]
    kinds += ["object", "object", "array", "union"] if depth < 3 else []
    kind = draw.choice(kinds) if depth else "object"
    match kind:
        case "integer" | "number":
            low = draw.randrange(-1000, 1000)
            return {"type": kind, "minimum": low, "maximum": low + draw.randrange(1, 5000)}
        case "string":
            return {"type": "string", "minLength": draw.randrange(3), "maxLength": 6}
        case "enum":
            return {"enum": draw.sample(["a", "b c", 7, -1, None, True, "\u00e9"], 3)}
        case "pattern":
            return {"type": "string", "pattern": draw.choice(["^[a-f]{2,4}$", "^\\d{3}-\\d{2}$"])}
        case "array":
            items = drawn_schema(draw, depth + 1)
            return {"type": "array", "items": items, "minItems": draw.randrange(2), "maxItems": 3}
        case "union":
            return {"anyOf": [drawn_schema(draw, depth + 1) for _ in range(2)]}
        case "object":
            names = draw.sample(
                ["id", "name", "x-y", "tags", "a b", "\u00fc"], draw.randrange(1, 4)
            )
            fields = {name: drawn_schema(draw, depth + 1) for name in names}
            required = [name for name in names if draw.random() < 0.7]
            return {"type": "object", "properties": fields, "required": required}
    return {"type": kind}


def test_a_hundred_random_schemas_are_kept_split_and_unsplit() -> None:
    schemas = [drawn_schema(random.Random(seed)) for seed in range(SCHEMAS)]
    for first in range(0, SCHEMAS, 10):
        some = schemas[first : first + 10]
        texts = both_ways(
            [
                asking(GrammarKind.JSON_SCHEMA, json.dumps(schema), seed=first + n)
                for n, schema in enumerate(some)
            ]
        )
        for schema, text in zip(some, texts, strict=True):
            jsonschema.validate(json.loads(text), schema | {"additionalProperties": False})


@pytest.mark.parametrize(
    "more",
    [
        {"temperature": 0.0},
        {"temperature": 1.5, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
        {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "logprobs": 3},
        {"logprobs": 2, "logprobs_of": Distribution.SAMPLED},
        {"min_tokens": 8},
        {"ignore_eos": True},
    ],
    ids=str,
)
def test_a_regex_and_a_grammar_are_kept_whatever_else_is_asked(more: dict[str, Any]) -> None:
    texts = both_ways(
        [asking(GrammarKind.REGEX, IP, seed=seed, **more) for seed in range(4)]
        + [asking(GrammarKind.EBNF, SUMS, seed=seed, **more) for seed in range(4)]
    )
    assert all(re.fullmatch(IP, text) for text in texts[:4])
    assert all(re.fullmatch(r"[0-9+()-]+", text) for text in texts[4:])
    for text in texts[4:]:
        eval(re.sub(r"\b0+(?=\d)", "", text), {})  # it is an expression


def test_rooms_with_and_without_a_grammar_share_a_batch_without_a_trace() -> None:
    engine = engine_of(0)
    free = Talk(RoomKey(90, 1), PROMPT, (400, 401), Sampling(temperature=0.0))
    alone = Talk(RoomKey(91, 1), PROMPT, (402, 403), Sampling(temperature=0.0))
    bound = Talk(RoomKey(92, 1), PROMPT, (404, 405), asking(GrammarKind.REGEX, "(ab){9}"))
    begin(engine, [alone])
    for _ in range(10):
        step(engine, [alone], 32)
    begin(engine, [free, bound])
    for _ in range(10):
        step(engine, [free, bound], 32)
    assert free.said == alone.said
    assert words().decode(bound.tokens) == "ababababab"


def test_a_room_that_begins_again_anywhere_goes_on_as_if_it_had_not() -> None:
    engine = engine_of(0)
    (whole,), (again,) = (
        talks_of([asking(GrammarKind.EBNF, SUMS, seed=11)], first) for first in (0, 256)
    )
    begin(engine, [whole])
    talk_to_its_end(engine, [whole])
    begin(engine, [again])
    while not has_ended(again):
        step(engine, [again], 32)
        engine.end(again.key)
        begin(engine, [again])
    assert again.said == whole.said


def test_a_room_whose_grammar_cannot_go_on_fails_alone_and_says_why() -> None:
    engine = engine_of(0)
    good = Sequence(RoomKey(80, 1), asking(GrammarKind.REGEX, "a+"), PROMPT)
    bad = Sequence(RoomKey(81, 1), asking(GrammarKind.REGEX, "("), PROMPT)
    lost = Sequence(RoomKey(82, 1), asking(GrammarKind.REGEX, "a+"), PROMPT, (70,))
    endless = Sequence(RoomKey(83, 1), asking(GrammarKind.REGEX, "a+", eos_token_ids=()), PROMPT)
    for sequence in (good, bad, lost, endless):
        engine.begin(sequence)
    results = engine.forward(
        [
            Item(sequence.key, PROMPT, 0, (300 + place,), samples=True)
            for place, sequence in enumerate((good, bad, lost, endless))
        ]
    )
    for sequence in (good, bad, lost, endless):
        engine.end(sequence.key)
    assert results[0].token is not None
    assert words().decode([results[0].token.id]) == "a"
    assert [result.token for result in results[1:]] == [None, None, None]
    assert results[1].error.startswith("regex: ")
    assert "does not go on with token 70" in results[2].error
    assert "needs a token to end with" in results[3].error
