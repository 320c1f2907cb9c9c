"""Admission to the native API: which pool a request goes to, and whether its token allows it."""

from collections.abc import Sequence
from typing import NamedTuple

from duetime.model.errors import Forbidden, Unauthorized
from duetime.protocols.rate_limits import RateLimits, Side, Slot
from duetime.protocols.tokens import EVERYTHING, Access, Tokens, split

NO_TOKEN = (
    "this server requires a token: `Authorization: Bearer TOKEN`; "
    "the SDK and the duetime command read it from DUETIME_TOKEN"
)


class Admitted(NamedTuple):
    """The pool that the request goes to, the slot it took of the token's limit, if there is one, and all that the token
    allows.
    """

    pool: str
    slot: Slot | None = None
    scopes: frozenset[Access] = EVERYTHING


class TokenGate:
    """The server's own tokens and limits."""

    def __init__(self, tokens: Tokens, limits: RateLimits) -> None:
        self._tokens = tokens
        self._limits = limits

    async def admit(self, token: str, namespace: str | None, needs: Sequence[Access], side: Side | None) -> Admitted:
        """`token` is its text with the pool in front, empty if none was sent; it must allow all of `needs`.

        Without a namespace the request is about all of them. Raises Unauthorized, Forbidden, PoolNotFound,
        TooManyRequests.
        """
        pool, secret = split(token)
        try:
            if namespace is None:
                return Admitted(await self._tokens.admit(token, None, Access.ADMIN))
            self._tokens.require_pool(pool)
            known = await self._tokens.check(pool, namespace, secret)
        except (Unauthorized, Forbidden):
            if not secret:
                raise Unauthorized(NO_TOKEN) from None
            raise
        for access in needs:
            known.require(access)
        return Admitted(pool, await self._limits.spend(known, side) if side else None, known.scopes)

    async def widen(self, slot: Slot, amount: int) -> Slot:
        """Let a request count as that many. Raises TooManyRequests."""
        return await self._limits.widen(slot, amount)

    async def refund(self, slot: Slot) -> None:
        """Gives the slot of a failed request back, so that it does not count."""
        await self._limits.give_back(slot)
