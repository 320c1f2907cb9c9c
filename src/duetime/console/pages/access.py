"""The pages Access (tokens and limits, users, sessions, namespaces) and Audit log, and one's own password."""

from collections import Counter
from collections.abc import Sequence

from starlette.responses import Response

from duetime.console.forms import FormReader, FormRefused, whole_number
from duetime.console.users import Role
from duetime.console.visit import Visit, link
from duetime.engine.schedules import SCHEDULES
from duetime.model.errors import InvalidRequest, InvalidSettings, NotFound
from duetime.model.names import check_namespace
from duetime.model.priority_shares import read_ratio
from duetime.protocols.logins import LONGEST_PASSWORD
from duetime.protocols.rate_limits import Limit
from duetime.protocols.tokens import KIND, READ_WRITE, Access, Token
from duetime.stores.registry import SHARES

ACTIONS_PER_PAGE = 50


async def show_access(visit: Visit, secret: str = "") -> Response:
    """`secret` belongs to a token that was just made; it is shown this once."""
    parts = visit.parts
    limits = {token.key: limit for token, limit in await parts.limits.list_limits(refresh=True)}
    snapshot = await parts.live.snapshots.read()
    queues = Counter((line.pool, line.queue.namespace) for line in snapshot.lines if line.queue != SCHEDULES)
    tokens = await _tokens(visit)
    held = Counter((token.pool, token.namespace) for token in tokens)
    return await visit.page(
        "access.html",
        tokens=[(token, limits.get(token.key)) for token in tokens],
        namespaces=[
            (*place, queues[place], held[place], ":".join(map(str, parts.pools.shares.of(place[1]))))
            for place in sorted(queues | held)
        ],
        pools=parts.pools.names,
        users=visit.services.users.list_users(),
        accounts=sorted(parts.settings.accounts),
        sessions=visit.services.sessions.list_sessions(),
        scopes=list(Access),
        roles=list(Role),
        secret=secret,
    )


async def _tokens(visit: Visit) -> Sequence[Token]:
    await visit.parts.registry_copy.refresh()
    spaces = {Token.of_key(record.key)[:2] for record in visit.parts.registry_copy.list_records(KIND)}
    known = [pair for pair in sorted(spaces) if pair[0] in visit.parts.pools]
    return [token for pool, namespace in known for token in await visit.parts.tokens.list_tokens(pool, namespace)]


async def set_shares(visit: Visit) -> Response:
    """The shares of high, normal and low priority in a namespace; those of the settings if empty."""
    namespace, registry = check_namespace(visit.field("namespace")), visit.parts.pools.registry
    given = visit.field("shares").strip()
    if given:
        try:
            ratio = ":".join(map(str, read_ratio(given)))
        except InvalidSettings as error:
            raise InvalidRequest(error.message) from None
        await registry.put(SHARES, namespace, ratio.encode())
    else:
        await registry.delete(SHARES, namespace)
    await visit.parts.registry_copy.refresh()
    await visit.log("shares", f"{namespace} {given}")
    return visit.go(text=visit.say("access.shares_set", namespace=namespace))


async def show_audit(visit: Visit) -> Response:
    """What was done in the console: who, what, to what; newest first, with a search."""
    find = visit.query.get("find", "").strip()
    actions = await visit.services.actions.read()
    if find:
        wanted = find.casefold()
        actions = [
            one
            for one in actions
            if wanted in " ".join((one.user, one.action, _words(visit, one.action), one.subject, one.detail)).casefold()
        ]
    return await visit.page("audit.html", page=visit.paged(actions, ACTIONS_PER_PAGE), find=find)


def _words(visit: Visit, action: str) -> str:
    return visit.word("action", action.replace(" ", "-"))


async def show_password(visit: Visit) -> Response:
    return await visit.page("password.html")


async def change_password(visit: Visit) -> Response:
    """A user's own password. All sessions of the user end, this one included."""
    session, form = visit.session, FormReader(visit)
    known = await visit.services.users.find(session.user)
    if known is None or session.namespace or session.is_account:
        raise InvalidRequest(visit.say("password.not_here"))
    given = visit.field("old")[:LONGEST_PASSWORD]
    if not await visit.parts.logins.matches(known.password, given):
        form.refuse("old", visit.say("password.wrong"))
    if visit.field("new") != visit.field("again"):
        form.refuse("again", visit.say("password.differ"))
    form.check()
    try:
        await visit.services.users.put(session.user, known.role, visit.field("new"))
    except InvalidRequest as error:
        raise FormRefused({"new": error.message}) from None
    await visit.log("password", session.user)
    return visit.go(link("login"), visit.say("password.changed"))


async def add_user(visit: Visit) -> Response:
    name, role = visit.field("name").strip(), visit.field("role").upper()
    if role not in Role.__members__:
        raise FormRefused({"role": f"{role[:40]!r} is not a role"})
    if name in visit.parts.settings.accounts:
        raise FormRefused({"name": visit.say("access.is_account", name=name)})
    try:
        await visit.services.users.put(name, Role[role], visit.field("password"))
    except InvalidRequest as error:
        raise FormRefused({"password" if "password" in error.message else "name": error.message}) from None
    await visit.log("add-user", name, role.lower())
    return visit.go(link("access"), visit.say("access.user_added", name=name))


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
    form, description = FormReader(visit), visit.field("description").strip()
    namespace = form.read("namespace", lambda text: check_namespace(text.strip()), "")
    scopes = frozenset(Access(scope) for scope in visit.all_of("scope") if scope in set(Access)) or READ_WRITE
    if not description:
        form.refuse("description", visit.say("access.needs_description"))
    form.check()
    secret = await visit.parts.tokens.create(visit.pool(), namespace, description, scopes=scopes)
    await visit.log("add-token", namespace, f"{description}: {', '.join(sorted(scopes))}")
    return await show_access(visit, secret if visit.pool() == "default" else f"{visit.pool()}:{secret}")


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
    try:
        return whole_number(visit.field(name))
    except InvalidRequest as error:
        raise InvalidRequest(f"{visit.say('access.' + name)} {visit.explain(error.message)}") from None
