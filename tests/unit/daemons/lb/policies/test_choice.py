from daemons.lb.fleet import Worker
from daemons.lb.policies.choice import Choice
from daemons.protocol.topology import Role, State


def test_a_choice_is_a_worker_and_a_reason() -> None:
    p0 = Worker("p0", Role.PREFILL, 1, State.READY, "h", 1)
    worker, because = Choice(p0, "its turn")
    assert (worker, because) == (p0, "its turn")
