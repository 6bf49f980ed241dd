"""What this instance tells the phone book: one registration per rank, none before all can serve."""

from __future__ import annotations

from collections.abc import Sequence

from daemons.front.config import FrontConfig
from daemons.front.lookups import places
from daemons.protocol.generate import RankReady
from daemons.protocol.topology import Registration, State


def registrations(
    config: FrontConfig, ready: Sequence[RankReady], state: State, http_port: int
) -> list[Registration]:
    """Return the instance's registrations; ``ready`` is what its ranks said."""
    found = []
    for rank in ready:
        place = places(rank.shape)[rank.rank]
        found.append(
            Registration(
                instance=config.instance,
                role=config.role,
                epoch=config.epoch,
                state=state,
                http_host=config.advertise,
                http_port=http_port,
                lease_s=config.timers.lease_s,
                version=config.version,
                fingerprint=rank.fingerprint,
                shape=rank.shape,
                attn_tp_rank=place["tp_rank"],
                attn_cp_rank=place["cp_rank"],
                attn_dp_rank=place["dp_rank"],
                pp_rank=place["pp_rank"],
                rank_ip=config.advertise,
                rank_port=rank.rank_port,
            )
        )
    return found


def disagreement(ready: Sequence[RankReady]) -> str:
    """Return why these ranks are not one instance, "" when they are."""
    shapes = {rank.shape for rank in ready}
    fingerprints = {rank.fingerprint for rank in ready}
    numbers = sorted(rank.rank for rank in ready)
    if len(shapes) > 1:
        return f"ranks tell different shapes: {shapes}"
    if len(fingerprints) > 1:
        return f"ranks tell different fingerprints: {fingerprints}"
    if len(ready) != ready[0].shape.ranks or numbers != list(range(len(ready))):
        return f"{len(ready)} ranks, numbered {numbers}, of {ready[0].shape.ranks}"
    return ""
