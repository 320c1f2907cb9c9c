"""The admin routes for tokens and their limits."""

import msgspec

from duetime.model.errors import PoolNotFound, VersionConflict
from duetime.model.names import DEFAULT_POOL, MAX_NAME
from duetime.protocols.lmstfy.admin_call import AdminCall
from duetime.protocols.lmstfy.options import LmstfyParts
from duetime.protocols.lmstfy.params import is_namespace
from duetime.protocols.lmstfy.wire import TEXT, LmstfyAnswer, Refused, refused, to_json, to_pretty_json
from duetime.protocols.rate_limits import Limit
from duetime.protocols.tokens import EVERYTHING, Access, Token, split

MIN_TOKEN = 20
NO_POOL = "the pool was not exists"
YES = frozenset({"1", "t", "T", "TRUE", "true", "True"})


async def create_token(parts: LmstfyParts, call: AdminCall) -> LmstfyAnswer:
    """Parameters: `description`; `token` to choose the secret; `scopes` (not in lmstfy), such as `read,write`."""
    form = await call.form()
    description, own = form.get("description", ""), form.get("token", "")
    if not description:
        raise refused(400, "invalid description")
    if own and len(own) < MIN_TOKEN:
        raise refused(400, "the user token was too short")
    if len(call.namespace.encode(errors="replace")) > MAX_NAME:
        raise refused(400, "the namespace name was too long")
    if not is_namespace(call.namespace):
        raise refused(400, "namespace name contains forbidden characters")
    pool, secret = call.query.get("pool") or DEFAULT_POOL, own
    if ":" in own:
        pool, secret = split(own)
    scopes = _read_scopes(form.get("scopes", ""))
    try:
        secret = await parts.tokens.create(pool, call.namespace, description, secret=secret, scopes=scopes)
    except PoolNotFound:
        raise refused(400, NO_POOL) from None
    except VersionConflict:
        raise refused(400, "the token has already existed") from None
    return LmstfyAnswer(201, to_pretty_json({"token": _shown(pool, secret)}))


def _read_scopes(text: str) -> frozenset[Access]:
    try:
        return frozenset(Access(word.strip()) for word in text.split(",")) if text else EVERYTHING
    except ValueError:
        raise refused(400, "invalid scopes") from None


def _shown(pool: str, name: str) -> str:
    return name if pool == DEFAULT_POOL else f"{pool}:{name}"


async def list_tokens(parts: LmstfyParts, call: AdminCall) -> LmstfyAnswer:
    asked = call.query.get("pool", "")
    prefix = f"{asked}:" if asked else ""
    try:
        known = await parts.tokens.list_tokens(asked or DEFAULT_POOL, call.namespace)
    except PoolNotFound:
        raise refused(400, NO_POOL) from None
    answer: dict[str, object] = {"tokens": {prefix + token.label: token.description for token in known}}
    if "scopes" in call.query:  # not in lmstfy
        answer["scopes"] = {prefix + token.label: sorted(token.scopes) for token in known}
    return LmstfyAnswer(200, to_pretty_json(answer))


async def delete_token(parts: LmstfyParts, call: AdminCall) -> LmstfyAnswer:
    token = await _find(parts, call)
    await parts.tokens.delete(token)
    await parts.limits.delete(token)
    return LmstfyAnswer(204)


async def _find(parts: LmstfyParts, call: AdminCall) -> Token:
    try:
        return await parts.tokens.find(call.namespace, call.token)
    except PoolNotFound:
        raise refused(400, NO_POOL) from None


# --- limits


async def list_limits(parts: LmstfyParts, call: AdminCall) -> LmstfyAnswer:
    shown: list[dict[str, object]] = []
    for token, limit in await parts.limits.list_limits(refresh=call.query.get("force_update") in YES):
        shown.append({"limiter": limit, "namespace": token.namespace, "token": _shown(token.pool, token.label)})
    return LmstfyAnswer(200, to_json(shown))


async def show_limit(parts: LmstfyParts, call: AdminCall) -> LmstfyAnswer:
    limit = await parts.limits.get(await _find(parts, call))
    return LmstfyAnswer(404, b"null") if limit is None else LmstfyAnswer(200, to_json(limit))


async def add_limit(parts: LmstfyParts, call: AdminCall) -> LmstfyAnswer:
    limit = await _read_limit(call)
    token = await _find(parts, call)
    try:
        await parts.limits.add(token, limit)
    except VersionConflict:
        raise refused(500, f"throttler token({token.label}) has already exists") from None
    return LmstfyAnswer(201, to_json({"limiter": limit}))


async def put_limit(parts: LmstfyParts, call: AdminCall) -> LmstfyAnswer:
    limit = await _read_limit(call)
    await parts.limits.put(await _find(parts, call), limit)
    return LmstfyAnswer(200, to_json({"limiter": limit}))


async def delete_limit(parts: LmstfyParts, call: AdminCall) -> LmstfyAnswer:
    await parts.limits.delete(await _find(parts, call))
    return LmstfyAnswer(200, b'{"msg":"success"}')


async def _read_limit(call: AdminCall) -> Limit:
    try:
        limit = msgspec.json.decode(await call.body(), type=Limit)
    except (msgspec.DecodeError, RecursionError):
        raise Refused(LmstfyAnswer(400, b'{"error":{}}', (TEXT,))) from None
    if limit.read == 0 and limit.write == 0:
        raise Refused(LmstfyAnswer(400, to_json({"limiter": limit})))
    if limit.interval == 0:
        raise refused(400, "interval should be > 0")
    if limit.interval < 0:
        raise refused(500, "limiter interval should be >= 0")
    return limit
