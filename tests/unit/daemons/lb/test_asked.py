from __future__ import annotations

from daemons.lb.asked import Asked
from daemons.lb.order import read_order


def asked(body: bytes, session: str = "", begun_s: float = 0.0) -> Asked:
    order = read_order("/generate", body, 10)
    return Asked(order, {}, 5.0, session=session, begun_s=begun_s)


def test_a_session_in_the_head_goes_before_one_in_the_body() -> None:
    body = b'{"text": "a", "session_id": "body"}'
    assert asked(body).wish.session == "body"
    assert asked(body, "head").wish.session == "head"


def test_a_wish_has_the_tokens_of_one_prompt_and_of_all() -> None:
    wish = asked(b'{"text": ["aaaaaaaa", "bbbbbbbb"], "max_tokens": 10}').wish
    assert (wish.rooms, wish.prompt_tokens, wish.tokens) == (2, 3, 26)


def test_time_runs_out() -> None:
    assert asked(b'{"text": "a"}').left_s() < 0
