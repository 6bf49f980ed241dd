from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemons.lb.wire.head import (
    FIELDS_LIMIT,
    HEAD_END,
    LINE_BYTES_LIMIT,
    BadHead,
    Fields,
    read_head,
    request_line,
)


def raw(*fields: str, line: str = "POST /generate HTTP/1.1", host: bool = True) -> bytes:
    told = [line, *(["Host: a"] if host else []), *fields]
    return ("\r\n".join(told) + "\r\n\r\n").encode("latin-1")


def test_a_head_is_read() -> None:
    head, _ = read_head(raw("Content-Length: 3", "X-A: b", "x-a: c", line="POST /g?q=1 HTTP/1.1"))
    assert (head.method, head.path, head.length, head.keep_alive) == ("POST", "/g", 3, True)
    assert head.headers["x-a"] == "b, c"
    assert not head.expects


@pytest.mark.parametrize(
    ("line", "field", "keeps"),
    [
        ("HTTP/1.1", "Connection: close", False),
        ("HTTP/1.1", "X: y", True),
        ("HTTP/1.0", "X: y", False),
        ("HTTP/1.0", "Connection: keep-alive", True),
    ],
)
def test_whether_the_connection_is_kept(line: str, field: str, *, keeps: bool) -> None:
    assert read_head(raw(field, line=f"POST /g {line}"))[0].keep_alive is keeps


@pytest.mark.parametrize(
    "fields",
    [
        ("Content-Length: 3", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding: chunked", "Content-Length: 3"),
        ("Content-Length: 3", "Content-Length: 3"),
        ("Content-Length: 3, 3",),
        ("Content-Length: +3",),
        ("Content-Length: -3",),
        ("Content-Length: 0x3",),
        ("Content-Length: 99999999999999999999999",),
        ("Content-Length : 3",),
        ("Transfer-Encoding: xchunked",),
        ("Transfer-Encoding: chunked, identity",),
        ("Transfer-Encoding: gzip, chunked",),
        ("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
        ("Host: b",),
        ("Authorization: a", "Authorization: b"),
        (" folded: 1",),
        ("A: b", " folded"),
        ("A: b\x00c",),
        ("A: b\nContent-Length: 3",),
        ("Upgrade: h2c", "Connection: upgrade", "Transfer-Encoding: chunked"),
    ],
)
def test_what_two_readers_could_understand_differently_is_400(fields: tuple[str, ...]) -> None:
    with pytest.raises(BadHead) as caught:
        read_head(raw(*fields))
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "whole",
    [
        raw(host=False),
        raw("Transfer-Encoding: chunked", line="POST /g HTTP/1.0"),
        raw(line="POST /g HTTP/3.0"),
        raw(line="POST  /g HTTP/1.1"),
        raw(line="POST /g"),
    ],
)
def test_a_head_that_is_none_is_400(whole: bytes) -> None:
    with pytest.raises(BadHead) as caught:
        read_head(whole)
    assert caught.value.status == 400


def test_a_head_with_too_much_in_it_is_431() -> None:
    for fields in (["X: " + "y" * LINE_BYTES_LIMIT], [f"X-{n}: y" for n in range(FIELDS_LIMIT)]):
        with pytest.raises(BadHead) as caught:
            read_head(raw(*fields))
        assert caught.value.status == 431


@pytest.mark.parametrize(
    ("line", "method", "path"),
    [
        (b"POST /generate HTTP/1.1\r\n", "POST", "/generate"),
        (b"GET /a?b=/c HTTP/1.1\r\n", "GET", "/a"),
        (b"POST http://h:1/generate HTTP/1.1\r\n", "POST", "/generate"),
        (b"OPTIONS * HTTP/1.1\r\n", "OPTIONS", "/"),
        (b"PRI * HTTP/2.0\r\n", "PRI", "/"),
        (b"\r\n", "", "/"),
    ],
)
def test_a_request_line_names_method_and_path(line: bytes, method: str, path: str) -> None:
    assert request_line(line) == (method, path)


@given(st.lists(st.text(st.characters(codec="latin-1"), max_size=30), max_size=5))
def test_whatever_comes_is_a_head_or_refused(fields: list[str]) -> None:
    whole = raw(*fields)
    whole = whole[: whole.index(HEAD_END) + 4]
    read = Fields()
    try:
        head, _ = read_head(whole, read)
    except BadHead as bad:
        said = bad.status
    else:
        said = 200 if (head.length is None or head.length >= 0) and read.begun == 1 else 0
    assert said in (200, 400, 431)
