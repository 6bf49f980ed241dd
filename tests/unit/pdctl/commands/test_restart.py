"""Restarting daemons in turns."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from daemons.protocol.topology import Role
from pdctl.commands import restart as verb
from pdctl.commands.restart import batches
from pdctl.errors import CommandError, Exit
from pdctl.places import Place
from tests.support.fake_fleet import Fleet, Said

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
