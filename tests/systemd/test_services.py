"""pd's services on one host under real systemd."""

from __future__ import annotations

from tests.systemd.installed import Installed


def test_what_was_installed_serves(host: Installed) -> None:
    assert host.machine.show("pd.target", "ActiveState") == "active"
    status, answer = host.ask()
    assert (status, answer["usage"]["completion_tokens"]) == (200, 8)
