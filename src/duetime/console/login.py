"""Logging in and out: with an account of duetime.toml, as a user, or with an admin token of a namespace."""

import time
from urllib.parse import quote, urlsplit

from starlette.responses import RedirectResponse, Response

from duetime.console.languages import LANGUAGES
from duetime.console.sessions import LIFE_S, Session
from duetime.console.users import Role
from duetime.console.visit import (
    CLOCKS,
    LANGUAGE,
    NAMESPACE,
    RATE,
    RATES,
    ROOT,
    THEME,
    THEMES,
    TIMES,
    Visit,
    link,
)
from duetime.model.errors import DuetimeError, TooManyRequests, Unauthorized
from duetime.protocols.logins import LONGEST_PASSWORD
from duetime.protocols.tokens import Access, digest_of, split

COOKIE = "duetime_session"


async def show_login(visit: Visit) -> Response:
    if visit.session_or_none is not None:
        return RedirectResponse(f"{ROOT}/", 303)
    return await visit.page("login.html", problem="", wanted=_wanted(visit))


async def log_in(visit: Visit) -> Response:
    try:
        session = await visit.parts.logins.attempt(visit.request.scope, visit.field("user"), lambda: _identify(visit))
    except (Unauthorized, TooManyRequests) as error:
        key = "login.too_many" if isinstance(error, TooManyRequests) else "login.wrong"
        return await visit.page("login.html", error.status, problem=visit.say(key), wanted=_wanted(visit))
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
        _keep(response, LANGUAGE, language)
    return response


async def set_preferences(visit: Visit) -> Response:
    """Theme, clock, rate of refresh and namespace of this browser."""
    response = visit.go()
    for name, cookie, options in (("theme", THEME, THEMES), ("times", TIMES, CLOCKS), ("rate", RATE, RATES)):
        if visit.field(name) in options:
            _keep(response, cookie, visit.field(name))
    for name, value in visit.fields:
        if name == "namespace":
            _keep(response, NAMESPACE, quote(value[:200], safe="/"))
    return response


def _keep(response: Response, cookie: str, value: str) -> None:
    response.set_cookie(cookie, value, max_age=365 * 86_400, path=ROOT, httponly=True, samesite="lax")


def _wanted(visit: Visit) -> str:
    """The page that the visitor asked for before logging in, if it is one of the console's."""
    parts = urlsplit(visit.given("next"))
    inside = parts.path.startswith(f"{ROOT}/") and not parts.netloc and not parts.scheme
    return parts.path + (f"?{parts.query}" if parts.query else "") if inside else ""


async def _identify(visit: Visit) -> Session:
    """The session that the posted name and password, or token, are good for. Raises Unauthorized."""
    user, password = visit.field("user").strip(), visit.field("password")[:LONGEST_PASSWORD]
    now = time.time()
    if not user:
        return await _by_token(visit, password)
    hashed, role = visit.parts.settings.accounts.get(user), Role.ADMIN
    is_account = hashed is not None
    if not is_account and (known := await visit.services.users.find(user)):
        hashed, role = known.password, known.role
    if not await visit.parts.logins.matches(hashed, password) or hashed is None:
        raise Unauthorized
    return Session(user, role, now, now + LIFE_S, password=digest_of(hashed), is_account=is_account)


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
