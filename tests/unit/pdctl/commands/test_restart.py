"""Restarting daemons in turns."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from daemons.cluster.load import load
from daemons.protocol.topology import Role
from pdctl.commands import restart as verb
from pdctl.commands.restart import batches
from pdctl.errors import CommandError, Exit
from pdctl.places import Place
from tests.support.fake_fleet import FakeDaemon, Fleet, Said

Pdctl = Callable[..., Said]


def place(name: str) -> Place:
    role = Role.PREFILL if name.startswith("p") else Role.DECODE
    return Place(name, role, "local", "127.0.0.1", 1)


@pytest.mark.parametrize(
    ("at_once", "turns"), [(1, "p0 p1 p2 d0"), (2, "p0,p1 p2 d0"), (9, "p0,p1,p2 d0")]
)
def test_a_turn_is_of_one_role_and_not_larger_than_allowed(at_once: int, turns: str) -> None:
    found = batches([place(name) for name in ("p0", "p1", "p2", "d0")], at_once)
    assert " ".join(",".join(one.instance for one in turn) for turn in found) == turns


def test_the_last_of_a_role_is_not_taken_away(fleet: Fleet, pdctl: Pdctl) -> None:
    said = pdctl("restart", "--rolling", "-c", fleet.config, "--yes")
    assert said.code == Exit.CONFLICT
    assert "no ready prefill would be left while p0 restarts" in said.err
    assert fleet.p0.posted == []


def test_force_and_dry_run_tell_the_order(fleet: Fleet, pdctl: Pdctl) -> None:
    said = pdctl("restart", "--rolling", "--force", "--dry-run", "-c", fleet.config)
    assert (said.code, said.err.split()) == (Exit.OK, ["p0", "d0"])


@pytest.mark.parametrize("words", [(), ("d0", "--rolling")])
def test_either_names_or_all(words: tuple[str, ...], fleet: Fleet, pdctl: Pdctl) -> None:
    assert pdctl("restart", *words, "-c", fleet.config).code == Exit.USAGE


def test_an_unknown_daemon_is_not_found(fleet: Fleet, pdctl: Pdctl) -> None:
    assert pdctl("restart", "p9", "-c", fleet.config).code == Exit.NOT_FOUND


def test_a_new_life_is_waited_for(
    fleet: Fleet, pdctl: Pdctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []

    def again(_: object, which: Place) -> None:
        begun.append(which.instance)
        told = fleet.bootstrap.routes["/instances"]
        assert isinstance(told, tuple)
        rows = [
            {**row, "epoch": row["epoch"] + (row["instance"] == which.instance)} for row in told[1]
        ]
        fleet.bootstrap.routes["/instances"] = 200, rows

    monkeypatch.setattr(verb, "again", again)
    for daemon in (fleet.p0, fleet.d0):
        routes = daemon.routes["/status"]
        assert isinstance(routes, tuple)
        daemon.routes["/status"] = 200, {**routes[1], "rooms": {}}
        daemon.routes["/drain"] = 200, {}
    said = pdctl("restart", "--rolling", "--force", "--yes", "-c", fleet.config)
    assert (said.code, begun) == (Exit.OK, ["p0", "d0"])
    assert fleet.p0.posted == [("/drain", {"on": True})]


def test_a_worker_that_keeps_its_rooms_is_put_back(fleet: Fleet, pdctl: Pdctl) -> None:
    fleet.d0.routes["/drain"] = 200, {}
    said = pdctl("restart", "d0", "--deadline", "0", "--force", "--yes", "-c", fleet.config)
    assert said.code == Exit.TIMEOUT
    assert [body["on"] for _, body in fleet.d0.posted] == [True, False]


def test_one_that_does_not_come_back_is_named(
    fleet: Fleet, pdctl: Pdctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "again", lambda *_: None)
    routes = fleet.d0.routes["/status"]
    assert isinstance(routes, tuple)
    fleet.d0.routes["/status"] = 200, {**routes[1], "rooms": {}}
    fleet.d0.routes["/drain"] = 200, {}
    said = pdctl("restart", "d0", "--force", "--yes", "--timeout", "1", "-c", fleet.config)
    assert said.code == Exit.TIMEOUT
    assert "its old life is still in the phone book" in said.err


def test_a_daemon_that_nobody_supervises_goes_to_systemd(fleet: Fleet, pdctl: Pdctl) -> None:
    from daemons.cluster.load import load

    with pytest.raises(CommandError, match="systemctl"):
        verb.again(load(fleet.config), place("p0"))


def idle(daemon: FakeDaemon) -> None:
    """Let a worker have no room, and drain when it is told to."""
    routes = daemon.routes["/status"]
    assert isinstance(routes, tuple)
    daemon.routes["/status"] = 200, {**routes[1], "rooms": {}}
    daemon.routes["/drain"] = 200, {}


def switched(daemon: FakeDaemon) -> list[bool]:
    return [body["on"] for path, body in daemon.posted if path == "/drain"]


@pytest.mark.parametrize(
    ("trouble", "code"),
    [(CommandError("systemctl says no", ""), Exit.FAILED), (KeyboardInterrupt(), 130)],
)
def test_a_worker_whose_process_is_not_replaced_is_put_back(
    trouble: BaseException, code: int, fleet: Fleet, pdctl: Pdctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise trouble

    monkeypatch.setattr(verb, "again", fails)
    idle(fleet.d0)
    assert pdctl("restart", "d0", "--force", "--yes", "-c", fleet.config).code == code
    assert switched(fleet.d0) == [True, False]


def test_of_a_turn_only_those_not_yet_replaced_are_put_back(
    fleet: Fleet, pdctl: Pdctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    def again(_: object, which: Place) -> None:
        if which.instance == "d1":
            raise CommandError("systemctl says no", "")

    idle(fleet.d0)
    d1 = Place("d1", Role.DECODE, "local", "127.0.0.1", fleet.p0.port)  # answers as d1 here
    idle(fleet.p0)
    monkeypatch.setattr(verb, "again", again)
    d0 = Place("d0", Role.DECODE, "local", "127.0.0.1", fleet.d0.port)
    with pytest.raises(CommandError, match="says no"):
        verb._replace(load(fleet.config), [d0, d1], 1.0, 1.0)
    assert (switched(fleet.d0), switched(fleet.p0)) == ([True], [True, False])


def test_one_that_cannot_be_put_back_hides_neither_the_cause_nor_the_others(
    fleet: Fleet, pdctl: Pdctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(_: object, which: Place) -> None:
        fleet.d0.routes["/drain"] = 409, {"error": {"message": "it stops"}}
        raise CommandError("systemctl says no", "")

    idle(fleet.d0)
    monkeypatch.setattr(verb, "again", dies)
    said = pdctl("restart", "d0", "--force", "--yes", "-c", fleet.config)
    assert "pdctl: systemctl says no" in said.err
    assert "d0 is not put back: d0 refuses" in said.err
