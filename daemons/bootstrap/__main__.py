"""``pd-bootstrap --config FILE``: the phone book."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from daemons.bootstrap.config import BootstrapConfig
from daemons.bootstrap.dp_ranks import DpRanks
from daemons.bootstrap.registry import Registry
from daemons.bootstrap.service import Service
from daemons.cluster.key import load_key
from daemons.cluster.load import BOOTSTRAP_NAME, ClusterFile, address_of, read_settings
from daemons.protocol.topology import Role
from daemons.runtime import log, program, systemd
from daemons.runtime.epoch import new_epoch
from daemons.runtime.guard import guard, tell_exposure
from daemons.runtime.http import run_site
from daemons.runtime.reload import Reload


async def serve(file: ClusterFile) -> None:
    """Serve until SIGTERM."""
    config = read_settings(file.cluster, BOOTSTRAP_NAME, BootstrapConfig)
    key = load_key(file.cluster)
    log.configure(BOOTSTRAP_NAME, "bootstrap", level=config.log_level)
    stop = program.Stop()
    stop.listen(Reload(file, BOOTSTRAP_NAME, _take_over))
    address = address_of(file.cluster, config.host)
    service = Service(
        Registry(config.forget_s),
        DpRanks(config.dp_rank_s),
        epoch=new_epoch(),
        version=program.version(),
        address=(config.advertise or address, config.port),
        guard=guard(key, Role.BOOTSTRAP, metrics_too=file.cluster.guard_metrics),
    )
    bind = config.bind or address
    site = await run_site(service.app(), bind, config.port, program.socket_of_unit())
    service.address = (service.address[0], site.port)
    tell_exposure(bind, key)
    ticking = asyncio.create_task(service.keep_ticking(), name="tick")
    service.log.info("daemon.ready", bind=site.host, port=site.port)
    systemd.notify("READY=1")
    await stop.asked.wait()
    systemd.notify("STOPPING=1")
    ticking.cancel()
    await site.close()
    service.log.info("daemon.stopped")


def _take_over(file: ClusterFile) -> frozenset[str]:
    """Take over what may change while the phone book serves."""
    config = read_settings(file.cluster, BOOTSTRAP_NAME, BootstrapConfig)
    log.configure(BOOTSTRAP_NAME, Role.BOOTSTRAP.value, level=config.log_level)
    return frozenset({"log_level"})


def main(argv: Sequence[str] | None = None) -> int:
    """Run pd-bootstrap; returns the exit code."""
    return program.run("pd-bootstrap", "The phone book of a cluster.", serve, argv)


if __name__ == "__main__":
    sys.exit(main())
