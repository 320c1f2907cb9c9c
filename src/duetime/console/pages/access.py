"""The page Access: namespaces with their tokens and limits, users, sessions, and the log of actions."""

from collections import Counter
from collections.abc import Sequence

from starlette.responses import Response

from duetime.console.users import Role
from duetime.console.visit import Visit
from duetime.model.errors import InvalidRequest, NotFound
from duetime.model.names import check_namespace
from duetime.protocols.rate_limits import Limit
from duetime.protocols.tokens import KIND, READ_WRITE, Access, Token

SHOWN_ACTIONS = 100


async def show_access(visit: Visit) -> Response:
    return await _page(visit)


async def _page(visit: Visit, secret: str = "") -> Response:
    """`secret` belongs to a token that was just made; it is shown this once."""
    parts = visit.parts
    limits = {token.key: limit for token, limit in await parts.limits.list_limits(refresh=True)}
    look = await parts.live.looks.look()
    queues = Counter((line.pool, line.queue.namespace) for line in look.lines)
    tokens = await _tokens(visit)
    held = Counter((token.pool, token.namespace) for token in tokens)
    return visit.page(
        "access.html",
        tokens=[(token, limits.get(token.key)) for token in tokens],
        namespaces=[(*place, queues[place], held[place]) for place in sorted(queues | held)],
        pools=parts.pools.names,
        users=visit.services.users.list_users(),
        accounts=sorted(parts.settings.accounts),
        sessions=visit.services.sessions.list_sessions(),
        actions=(await visit.services.actions.read())[:SHOWN_ACTIONS],
        scopes=list(Access),
        roles=list(Role),
        secret=secret,
    )


async def _tokens(visit: Visit) -> Sequence[Token]:
    await visit.parts.registry_copy.refresh()
    spaces = {Token.of_key(record.key)[:2] for record in visit.parts.registry_copy.list_records(KIND)}
    known = [pair for pair in sorted(spaces) if pair[0] in visit.parts.pools]
    return [token for pool, namespace in known for token in await visit.parts.tokens.list_tokens(pool, namespace)]


async def add_user(visit: Visit) -> Response:
    name, role = visit.field("name").strip(), visit.field("role").upper()
    if role not in Role.__members__:
        raise InvalidRequest(f"{role[:40]!r} is not a role")
    if name in visit.parts.settings.accounts:
        raise InvalidRequest(visit.say("access.is_account", name=name))
    await visit.services.users.put(name, Role[role], visit.field("password"))
    await visit.log("add-user", name, role.lower())
    return visit.go(text=visit.say("access.user_added", name=name))


async def remove_user(visit: Visit) -> Response:
    name = visit.field("name")
    await visit.services.users.delete(name)
    await visit.log("remove-user", name)
    return visit.go(text=visit.say("access.user_removed", name=name))


async def end_session(visit: Visit) -> Response:
    label = visit.field("label")
    if len(label) < 8:
        raise NotFound(visit.say("access.no_session"))
    await visit.services.sessions.end(label)
    await visit.log("end-session", label)
    return visit.go(text=visit.say("access.session_ended"))


async def add_token(visit: Visit) -> Response:
    """The answer to the post itself shows the secret, so that it is in no address, no cookie and no log."""
    namespace, description = check_namespace(visit.field("namespace").strip()), visit.field("description").strip()
    scopes = frozenset(Access(scope) for scope in visit.all_of("scope") if scope in set(Access)) or READ_WRITE
    if not description:
        raise InvalidRequest(visit.say("access.needs_description"))
    secret = await visit.parts.tokens.create(visit.pool(), namespace, description, scopes=scopes)
    await visit.log("add-token", namespace, f"{description}: {', '.join(sorted(scopes))}")
    return await _page(visit, secret if visit.pool() == "default" else f"{visit.pool()}:{secret}")


async def _find(visit: Visit) -> Token:
    wanted = visit.field("token")
    for token in await _tokens(visit):
        if token.key == wanted:
            return token
    raise NotFound(visit.say("access.no_token"))


async def revoke_token(visit: Visit) -> Response:
    token = await _find(visit)
    await visit.parts.tokens.delete(token)
    await visit.parts.limits.delete(token)
    await visit.log("revoke-token", f"{token.namespace} {token.label}", token.description)
    return visit.go(text=visit.say("access.revoked", label=token.label))


async def set_limit(visit: Visit) -> Response:
    token = await _find(visit)
    read, write, interval = (_number(visit, name) for name in ("read", "write", "interval"))
    if not interval or not (read or write):
        await visit.parts.limits.delete(token)
    else:
        await visit.parts.limits.put(token, Limit(interval, read, write))
    await visit.log("limit", f"{token.namespace} {token.label}", f"read {read}, write {write} in {interval} s")
    return visit.go(text=visit.say("access.limit_set", label=token.label))


def _number(visit: Visit, name: str) -> int:
    text = visit.field(name).strip() or "0"
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise InvalidRequest(f"{name}: {text[:40]!r} is not a number")
    return int(text)
