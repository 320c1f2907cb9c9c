"""Logging in and out: with an account of duetime.toml, as a user, or with an admin token of a namespace."""

import time
from urllib.parse import urlsplit

from starlette.responses import RedirectResponse, Response

from duetime.console.languages import LANGUAGES
from duetime.console.sessions import LIFE_S, Session
from duetime.console.users import LONGEST_PASSWORD, Role
from duetime.console.visit import LANGUAGE, ROOT, Visit, link
from duetime.doors.tokens import Access, same_secret, split
from duetime.errors import DuetimeError, TooManyRequests, Unauthorized

COOKIE = "duetime_session"
WINDOW_MS = 300_000
PER_ADDRESS = 10
PER_NAME = 50
"""How many failed logins are let pass within the window, per client address and per user name."""


async def show_login(visit: Visit) -> Response:
    if visit.session_or_none is not None:
        return RedirectResponse(f"{ROOT}/", 303)
    return visit.page("login.html", problem="", wanted=_wanted(visit))


async def log_in(visit: Visit) -> Response:
    try:
        await _check_failures(visit)
        try:
            session = await _identify(visit)
        except Unauthorized:
            await _count_failure(visit)
            raise
    except (Unauthorized, TooManyRequests) as error:
        key = "login.too_many" if isinstance(error, TooManyRequests) else "login.wrong"
        return visit.page("login.html", error.status, problem=visit.say(key), wanted=_wanted(visit))
    secret = await visit.services.sessions.open(session)
    await visit.services.actions.write(session.user, "login", session.namespace or "console")
    response = RedirectResponse(_wanted(visit) or f"{ROOT}/", 303)
    response.set_cookie(
        COOKIE,
        secret,
        max_age=LIFE_S,
        path=ROOT,
        httponly=True,
        samesite="strict",
        secure=visit.request.url.scheme == "https",
    )
    return response


async def log_out(visit: Visit) -> Response:
    await visit.services.sessions.close(visit.request.cookies.get(COOKIE, ""))
    response = RedirectResponse(link("login"), 303)
    response.delete_cookie(COOKIE, path=ROOT)
    return response


async def set_language(visit: Visit) -> Response:
    response = visit.go()
    language = visit.field("language")
    if language in LANGUAGES:
        response.set_cookie(LANGUAGE, language, max_age=365 * 86_400, path=ROOT, httponly=True, samesite="lax")
    return response


def _wanted(visit: Visit) -> str:
    """The page that the visitor asked for before logging in, if it is one of the console's."""
    parts = urlsplit(visit.given("next"))
    inside = parts.path.startswith(f"{ROOT}/") and not parts.netloc and not parts.scheme
    return parts.path + (f"?{parts.query}" if parts.query else "") if inside else ""


def _counters(visit: Visit) -> list[tuple[str, int]]:
    """The counters of failed logins that this request belongs to, and how many failures each lets pass."""
    client = visit.request.client.host if visit.request.client else "socket"
    name = visit.field("user")[:64]
    return [(f"console-login/address/{client}", PER_ADDRESS), (f"console-login/name/{name}", PER_NAME)]


async def _check_failures(visit: Visit) -> None:
    for name, most in _counters(visit):
        counter = await visit.parts.pools.registry.increment(name, 0)
        if counter.value >= most:
            raise TooManyRequests(retry_after_s=max(1, counter.left_ms // 1000))


async def _count_failure(visit: Visit) -> None:
    for name, _ in _counters(visit):
        await visit.parts.pools.registry.increment(name, life_ms=WINDOW_MS)


async def _identify(visit: Visit) -> Session:
    """The session that the posted name and password, or token, are good for. Raises Unauthorized."""
    user, password = visit.field("user").strip(), visit.field("password")[:LONGEST_PASSWORD]
    now = time.time()
    if not user:
        return await _by_token(visit, password)
    accounts = visit.parts.settings.accounts
    if user in accounts:
        if not same_secret(password, accounts[user]):
            raise Unauthorized
        return Session(user, Role.ADMIN, now, now + LIFE_S, is_account=True)
    role = await visit.services.users.check(user, password)
    if role is None:
        raise Unauthorized
    return Session(user, role, now, now + LIFE_S)


async def _by_token(visit: Visit, text: str) -> Session:
    """A token is for one namespace, and so is the session."""
    pool, secret = split(text)
    namespace, now = visit.field("namespace").strip(), time.time()
    try:
        token = await visit.parts.tokens.check(pool, namespace, secret)
        token.require(Access.ADMIN)
    except DuetimeError:
        raise Unauthorized from None
    name = f"token {token.label}"
    return Session(name, Role.OPERATOR, now, now + LIFE_S, pool=token.pool, namespace=token.namespace, token=token.key)
