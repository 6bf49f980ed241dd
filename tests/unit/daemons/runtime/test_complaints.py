from __future__ import annotations

from structlog.testing import capture_logs

from daemons.runtime.complaints import Complaints


def test_a_kind_is_told_at_once_then_once_in_a_while_with_what_was_left_untold() -> None:
    now = [0.0]
    asked: list[int] = []

    def facts() -> dict[str, object]:
        asked.append(1)
        return {"hint": "h"}

    with capture_logs() as lines:
        complaints = Complaints(every_s=60, clock=lambda: now[0])
        said = [complaints.say("message.refused", "bad seal", facts) for _ in range(5)]
        now[0] = 60.0
        said.append(complaints.say("message.refused", "bad seal", facts))
    assert said == [True, False, False, False, False, True]
    assert [line["untold"] for line in lines] == [0, 4]
    assert len(asked) == 2


def test_one_kind_does_not_silence_another() -> None:
    with capture_logs() as lines:
        complaints = Complaints(clock=lambda: 0.0)
        for reason in ("unsealed", "bad seal", "unsealed"):
            complaints.say("message.refused", reason, dict)
    assert [line["reason"] for line in lines] == ["unsealed", "bad seal"]
