"""What one client may have open and send, so that it cannot take the place of all others; pure.

A client is an API key, or an address where there is none. Who is within its limits costs nothing to
remember, so what is remembered is bounded by who is busy.
"""

from __future__ import annotations

from dataclasses import dataclass, field

SWEEP = 1024  # clients that are remembered before those at rest are forgotten
ROOMS_AGAIN_S = 1.0  # nobody knows when a room ends: told to clients with too many


@dataclass(slots=True)
class Account:
    """One client."""

    tokens: float  # requests that it may send at once
    at_s: float
    rooms: int = 0  # open now


@dataclass(slots=True)
class Limits:
    """The same for every client; 0 is no limit."""

    rooms: int  # open at once
    rate: float  # requests/s in the long run
    burst: int  # requests beyond it
    accounts: dict[str, Account] = field(default_factory=dict)

    def enter(self, who: str, rooms: int, now_s: float) -> float | None:
        """Count a request of ``rooms`` rooms; return when to try again if it is too much.

        A client without any open room may open any number, as a batch is one request.
        """
        if not self.rooms and not self.rate:
            return None
        account = self._account(who, now_s)
        if self.rooms and account.rooms and account.rooms + rooms > self.rooms:
            return ROOMS_AGAIN_S
        if self.rate:
            if account.tokens < 1:
                return (1 - account.tokens) / self.rate
            account.tokens -= 1
        account.rooms += rooms
        return None

    def leave(self, who: str, rooms: int) -> None:
        """A request that was let in has ended."""
        if (account := self.accounts.get(who)) is not None:
            account.rooms -= rooms

    def _account(self, who: str, now_s: float) -> Account:
        if len(self.accounts) >= SWEEP and who not in self.accounts:
            self._sweep(now_s)
        account = self.accounts.setdefault(who, Account(float(self.burst), now_s))
        account.tokens = self._tokens(account, now_s)
        account.at_s = now_s
        return account

    def _tokens(self, account: Account, now_s: float) -> float:
        return min(self.burst, account.tokens + (now_s - account.at_s) * self.rate)

    def _sweep(self, now_s: float) -> None:
        """Forget clients that are as if they had never come."""
        self.accounts = {
            who: one
            for who, one in self.accounts.items()
            if one.rooms or (self.rate and self._tokens(one, now_s) < self.burst)
        }
