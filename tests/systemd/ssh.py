"""A way by ssh from one machine to another, with keys that are thrown away with them."""

from __future__ import annotations

from pathlib import Path

from tests.systemd.machine import Machine, until

SSHD = Path("/usr/sbin/sshd")
SERVER = """
HostKey /etc/ssh/test_key
AuthorizedKeysFile /etc/ssh/test_authorized
PermitRootLogin prohibit-password
PasswordAuthentication no
StrictModes no
UsePAM no
PidFile none
"""
CLIENT = """
Host *
  IdentityFile /etc/ssh/test_own_key
  StrictHostKeyChecking yes
  UserKnownHostsFile /etc/ssh/test_known
"""


def why_not() -> str:
    """Return why there can be no ssh here, "" when there can."""
    return "" if SSHD.exists() else "sshd is not installed: apt-get install openssh-server"


def joined(one: Machine, other: Machine, address: str) -> None:
    """Let root of ``one`` come to ``other``, which listens on ``address``."""
    one.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "/etc/ssh/test_own_key")
    other.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "/etc/ssh/test_key")
    other.write("/etc/ssh/test_authorized", one.path("/etc/ssh/test_own_key.pub").read_text())
    host_key = " ".join(other.path("/etc/ssh/test_key.pub").read_text().split()[:2])
    one.write("/etc/ssh/test_known", f"{address} {host_key}\n")
    one.write("/etc/ssh/ssh_config.d/test.conf", CLIENT)
    other.write("/etc/ssh/test_config", f"ListenAddress {address}\n{SERVER}")
    other.run("mkdir", "-p", "/run/sshd")
    argv = ["systemd-run", "--unit=test-sshd", str(SSHD), "-D", "-e", "-f", "/etc/ssh/test_config"]
    other.run(*argv)
    ask = ("ssh", "-o", "BatchMode=yes", address, "true")
    came = until(lambda: one.run(*ask, check=False).returncode == 0, 20.0)
    assert came, one.run(*ask, check=False).stderr + other.journal("test-sshd")
