"""Mooncake's environment and import."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from daemons.cluster.errors import OperatorError
from daemons.transfer import mooncake_env
from daemons.transfer.config import TransferConfig
from daemons.transfer.mooncake_env import PORTS, load, needs_ipv6, settings


def run(program: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_connection_gives_up_before_the_caller_does() -> None:
    for timeout_s in (2.0, 2.1, 600.0):
        told = settings(TransferConfig(write_timeout_s=timeout_s), ipv6=False)
        assert int(told["MC_TCP_PROGRESS_TIMEOUT_SEC"]) >= timeout_s
        assert int(told["MC_TRANSFER_TIMEOUT"]) > int(told["MC_TCP_PROGRESS_TIMEOUT_SEC"])


def test_queues_hold_more_than_any_write_begins() -> None:
    told = settings(TransferConfig(), ipv6=False)
    assert int(told["MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER"]) > 1024
    assert int(told["MC_TCP_MAX_PENDING_ADMISSIONS_PER_PEER"]) > 1024


@pytest.mark.parametrize(("protocol", "forced"), [("tcp", "1"), ("auto", ""), ("rdma", "")])
def test_tcp_is_forced_only_when_it_is_asked_for(protocol: str, forced: str) -> None:
    told = settings(TransferConfig(protocol=protocol), ipv6=False)  # type: ignore[arg-type]
    assert told["MC_FORCE_TCP"] == forced


@pytest.mark.parametrize(
    ("host", "family"), [("127.0.0.1", 4), ("::1", 6), ("[::1]", 6), ("localhost", 4)]
)
def test_ipv6_is_used_only_for_hosts_that_have_nothing_else(host: str, family: int) -> None:
    assert needs_ipv6(host) == (family == 6)


def test_a_host_without_an_address_is_named() -> None:
    with pytest.raises(OperatorError, match="no such host"):
        needs_ipv6("no such host")


def test_settings_that_abort_or_freeze_mooncake_are_removed_before_its_import() -> None:
    program = (
        "import os; from daemons.transfer.config import TransferConfig as C;"
        "from daemons.transfer.mooncake_env import load; load(C(), '127.0.0.1');"
        "print(sorted(k for k in os.environ if k in ('MC_LOG_DIR', 'MC_TCP_PROTO',"
        " 'MC_TE_METADATA_REFRESH_INTERVAL_SECONDS', 'MC_USE_IPV6')), os.environ['MC_LOG_LEVEL'])"
    )
    told = run(
        program,
        MC_LOG_DIR="/tmp",
        MC_TCP_PROTO="1",
        MC_TE_METADATA_REFRESH_INTERVAL_SECONDS="1",
        MC_USE_IPV6="1",
        MC_LOG_LEVEL="TRACE",
    )
    assert told == "[] ERROR"


def test_other_settings_in_one_process_are_refused_with_the_difference() -> None:
    program = (
        "from daemons.transfer.config import TransferConfig as C;"
        "from daemons.cluster.errors import OperatorError;"
        "from daemons.transfer.mooncake_env import load\n"
        "load(C(), '127.0.0.1'); load(C(batch_copies=7), '127.0.0.1')\n"
        "try: load(C(protocol='tcp'), '127.0.0.1')\n"
        "except OperatorError as e: print(e.what)"
    )
    assert "(MC_FORCE_TCP='1')" in run(program)


def test_an_import_before_the_settings_is_refused() -> None:
    program = (
        "import mooncake.engine; from daemons.transfer.config import TransferConfig as C;"
        "from daemons.cluster.errors import OperatorError;"
        "from daemons.transfer.mooncake_env import load\n"
        "try: load(C(), '127.0.0.1')\n"
        "except OperatorError as e: print('refused')"
    )
    assert run(program) == "refused"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("libibverbs.so.1: cannot open shared object file", "apt-get install libibverbs1"),
        ("libnuma.so.1: cannot open shared object file", "apt-get install libnuma1"),
        ("libcurl.so.4: cannot open shared object file", "apt-get install libcurl4"),
        ("libcudart.so.12: cannot open shared object file", "extra 'cpu'"),
        ("No module named 'mooncake'", "cpu, cuda12, cuda13"),
    ],
)
def test_what_is_missing_is_told_with_what_brings_it(
    monkeypatch: pytest.MonkeyPatch, text: str, told: str
) -> None:
    def broken(name: str) -> None:
        raise ImportError(text)

    monkeypatch.setattr(mooncake_env, "_apply", lambda wanted: None)
    monkeypatch.setattr(mooncake_env.importlib, "import_module", broken)
    with pytest.raises(OperatorError) as caught:
        load(TransferConfig(), "127.0.0.1")
    assert told in caught.value.hint


def test_each_engine_has_ports_to_choose_from() -> None:
    assert len(PORTS) >= 16 * 100
    assert min(PORTS) > 1024
    assert max(PORTS) < 32768  # below the kernel's own range, which Mooncake refuses
