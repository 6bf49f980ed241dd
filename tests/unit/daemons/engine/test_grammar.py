"""Grammars: what may come next, and that a walk depends on nothing but the tokens said."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch

from daemons.engine import grammar as module
from daemons.engine.grammar import (
    BadGrammar,
    Compiler,
    Grammars,
    Walk,
    forbidden,
    hold_back,
    new_bits,
)
from daemons.protocol.generate import Grammar, GrammarKind, Sampling
from tests.support.tiny_model import EOS, space_tokenizer, tiny_model

pytest.importorskip("xgrammar")
VOCABULARY = 320  # more than the tokenizer has
AB = Grammar(GrammarKind.REGEX, "ab*")
ENDS = Sampling(eos_token_ids=(EOS,))


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    return Compiler(tiny_model(tmp_path_factory.mktemp("model")), VOCABULARY)


@pytest.fixture
def grammars(compiler: Compiler) -> Grammars:
    return Grammars(compiler)


def allowed(walk: Walk) -> set[int]:
    bits = new_bits(2, VOCABULARY)
    walk.allow(bits, 1)
    assert not forbidden(bits, VOCABULARY)[0].any()
    return set((~forbidden(bits, VOCABULARY)[1]).nonzero().flatten().tolist())


def test_only_what_the_grammar_has_may_come_next(grammars: Grammars) -> None:
    walk = grammars.walk(AB, ENDS, ())
    assert allowed(walk) == {ord("a")}
    walk.add(ord("a"))
    assert allowed(walk) == {ord("b"), EOS}


def test_a_finished_grammar_allows_only_what_ends_the_text(grammars: Grammars) -> None:
    sampling = Sampling(eos_token_ids=(EOS,), stop_token_ids=(ord("x"), VOCABULARY - 1))
    walk = grammars.walk(Grammar(GrammarKind.REGEX, "a"), sampling, ())
    assert allowed(walk) == {ord("a")}
    walk.add(ord("a"))
    assert allowed(walk) == {EOS, ord("x"), VOCABULARY - 1}


def test_words_of_a_sentencepiece_vocabulary_are_the_texts_that_they_stand_for(
    tmp_path: Path,
) -> None:
    tokenizer = space_tokenizer()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    words = Grammars(Compiler(tmp_path, VOCABULARY))
    the, space = (tokenizer.token_to_id(word) for word in ("\u2581the", "\u2581"))
    walk = words.walk(Grammar(GrammarKind.REGEX, " the[^a-z]*"), ENDS, ())
    first = allowed(walk)
    assert {the, space} <= first <= {the, space, tokenizer.token_to_id("<0x20>")}
    walk.add(the)
    assert {EOS, space, tokenizer.token_to_id("\u4e2d")} <= allowed(walk)
    assert the not in allowed(walk)


def test_without_an_end_of_sequence_a_stop_token_ends_the_text(grammars: Grammars) -> None:
    walk = grammars.walk(AB, Sampling(stop_token_ids=(300,)), (ord("a"),))
    assert allowed(walk) == {ord("b"), 300}


def test_a_text_without_any_end_is_refused(grammars: Grammars) -> None:
    with pytest.raises(BadGrammar, match="needs a token to end with"):
        allowed(grammars.walk(AB, Sampling(), ()))


def test_a_walk_that_begins_later_is_where_one_is_that_came_all_the_way(grammars: Grammars) -> None:
    grammar = Grammar(GrammarKind.JSON_SCHEMA, '{"type":"object","properties":{"n":{"enum":[7]}}}')
    said = list(b'{"n": 7')
    walk = grammars.walk(grammar, ENDS, ())
    for place, token in enumerate(said):
        assert allowed(walk) == allowed(grammars.walk(grammar, ENDS, said[:place]))
        walk.add(token)
    assert allowed(walk) == allowed(grammars.walk(grammar, ENDS, said)) == {*b" \n\r}"}


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ((ord("b"),), "does not go on with token 98"),
        ((ord("a"), EOS), "the text has ended"),
        ((ord("a"), EOS, 5), "does not go on with token 5"),
    ],
)
def test_a_walk_that_cannot_go_on_says_why(
    said: tuple[int, ...], words: str, grammars: Grammars
) -> None:
    walk = grammars.walk(AB, ENDS, said)
    for _ in range(2):
        with pytest.raises(BadGrammar, match=words):
            allowed(walk)


def test_no_string_of_json_has_a_control_character(grammars: Grammars) -> None:
    schema = '{"type":"string","minLength":1,"maxLength":6}'
    walk = grammars.walk(Grammar(GrammarKind.JSON_SCHEMA, schema), ENDS, list(b'"'))
    assert not allowed(walk) & set(range(32))
    assert {*b" az", 0xC3} <= allowed(walk)
    assert 9 in allowed(grammars.walk(Grammar(GrammarKind.REGEX, r"\t"), ENDS, ()))


def test_special_tokens_are_no_words_of_a_text(grammars: Grammars) -> None:
    walk = grammars.walk(Grammar(GrammarKind.REGEX, "<s>"), ENDS, ())
    assert allowed(walk) == {ord("<")}


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar(GrammarKind.JSON),
        Grammar(GrammarKind.JSON_SCHEMA, '{"type": "object"}'),
        Grammar(GrammarKind.EBNF, 'root ::= "{" [0-9]+ "}"'),
        Grammar(GrammarKind.REGEX, r"\{[0-9]+\}"),
        Grammar(
            GrammarKind.STRUCTURAL_TAG,
            '{"type":"structural_tag","format":{"type":"const_string","value":"{}"}}',
        ),
    ],
    ids=lambda grammar: grammar.kind.value,
)
def test_every_kind_of_grammar_begins_as_it_says(grammar: Grammar, grammars: Grammars) -> None:
    assert allowed(grammars.walk(grammar, ENDS, ())) == {ord("{")}


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        (GrammarKind.REGEX, "(a", "regex: Regex parsing error at position 3: The parenthesis"),
        (GrammarKind.EBNF, "root ::= ", "ebnf: EBNF parser error at line 1"),
        (GrammarKind.JSON_SCHEMA, "{nope", "json_schema: Expecting property name"),
        (GrammarKind.JSON_SCHEMA, '{"type":"objet"}', 'Unsupported type "objet"'),
        (GrammarKind.JSON_SCHEMA, '{"$ref":"http://x/y"}', "json_schema: .*only #/"),
        (GrammarKind.JSON_SCHEMA, '{"not":' * 9999 + "{}" + "}" * 9999, "json_schema: "),
        (GrammarKind.STRUCTURAL_TAG, '{"x":1}', "structural_tag: "),
    ],
)
def test_a_grammar_that_is_not_well_formed_says_why_in_one_line(
    kind: GrammarKind, text: str, words: str, compiler: Compiler
) -> None:
    with pytest.raises(BadGrammar, match=words) as caught:
        compiler.compile(Grammar(kind, text))
    assert "\n" not in str(caught.value)
    assert ".cc:" not in str(caught.value)


def test_a_grammar_too_large_when_compiled_is_refused(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GRAMMAR_BYTES_LIMIT", 100)
    with pytest.raises(BadGrammar, match="MiB when compiled"):
        compiler.compile(AB)


def test_a_bad_grammar_is_told_to_each_of_its_rooms(grammars: Grammars) -> None:
    bad = Grammar(GrammarKind.REGEX, "(")
    for _ in range(2):
        with pytest.raises(BadGrammar, match="regex: "):
            allowed(grammars.walk(bad, ENDS, ()))


def test_a_grammar_that_is_never_there_fails_the_room_by_its_deadline() -> None:
    walk = Walk(Future(), (EOS,), (), [], time.monotonic() - 1)
    with pytest.raises(BadGrammar, match="not compiled within"):
        allowed(walk)


def test_a_grammar_is_compiled_once(grammars: Grammars) -> None:
    first = grammars.prepare(AB)
    assert grammars.prepare(Grammar(GrammarKind.REGEX, "ab*")) is first


def test_the_least_recently_used_grammars_are_forgotten(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COMPILED_LIMIT", 2)
    first, second = (grammars.prepare(Grammar(GrammarKind.REGEX, text)) for text in "ab")
    assert grammars.prepare(Grammar(GrammarKind.REGEX, "a")) is first
    grammars.prepare(Grammar(GrammarKind.REGEX, "c"))
    assert grammars.prepare(Grammar(GrammarKind.REGEX, "a")) is first
    assert grammars.prepare(Grammar(GrammarKind.REGEX, "b")) is not second


def test_what_is_remembered_is_bounded_in_bytes(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COMPILED_BYTES_LIMIT", 1)
    first = grammars.prepare(AB)
    first.result(30)
    grammars.prepare(Grammar(GrammarKind.REGEX, "c")).result(30)
    assert grammars.prepare(AB) is not first


def test_what_is_held_back_stays_where_nothing_else_is_allowed() -> None:
    bits = torch.zeros(2, dtype=torch.int32)
    for token in (3, 31, 63):
        bits[token // 32] |= module._bit(token)
    hold_back(bits, (31, 3))
    assert (~forbidden(bits[None], 64)[0]).nonzero().flatten().tolist() == [63]
    hold_back(bits, (63,))
    assert (~forbidden(bits[None], 64)[0]).nonzero().flatten().tolist() == [63]


def test_all_ways_to_read_bits_agree() -> None:
    bits = torch.randint(-(2**31), 2**31, (3, 5), dtype=torch.int64).to(torch.int32)
    plain = [
        [not bits[row, token // 32].item() >> token % 32 & 1 for token in range(150)]
        for row in range(3)
    ]
    assert forbidden(bits, 150).tolist() == plain
    assert module._forbidden_by_shifts(bits, 150).tolist() == plain


def test_the_library_comes_without_transformers_and_only_when_it_is_used(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from daemons.engine.engine import Engine
from daemons.engine.grammar import Compiler
from daemons.protocol.generate import Grammar, GrammarKind
assert "xgrammar" not in sys.modules
Compiler(Path({str(tiny_model(tmp_path))!r}), 320).compile(Grammar(GrammarKind.JSON))
assert "xgrammar" in sys.modules
assert "transformers" not in sys.modules and "triton" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_where_the_library_is_not_installed_a_grammar_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "xgrammar", raising=False)
    monkeypatch.setattr(module, "is_installed", lambda: False)
    with pytest.raises(BadGrammar, match="not installed here"):
        Compiler(tmp_path, VOCABULARY).compile(AB)


def test_what_may_come_next_is_looked_for_as_soon_as_a_token_is_known(grammars: Grammars) -> None:
    walk = grammars.walk(Grammar(GrammarKind.REGEX, "ab+c"), ENDS, ())
    assert allowed(walk) == {ord("a")}
    walk.add(ord("a"))
    assert walk._next is not None
    found = walk._next.result(20)
    assert found[ord("b") // 32] == 1 << ord("b") % 32
    assert walk.said == []
    assert allowed(walk) == {ord("b")}
    for token in b"bbc":  # several at once, as nothing is chosen between
        walk.add(token)
    assert allowed(walk) == {EOS}


def test_a_grammar_of_which_a_step_takes_too_much_fails_its_room(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk = grammars.walk(Grammar(GrammarKind.REGEX, "ab+c"), ENDS, ())
    assert allowed(walk) == {ord("a")}
    monkeypatch.setattr(module, "MASK_S", -1.0)
    walk.add(ord("a"))
    with pytest.raises(BadGrammar, match="takes more than"):
        allowed(walk)
