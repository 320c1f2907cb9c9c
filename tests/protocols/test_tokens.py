"""A token is its bytes, UTF-8 as text, in every protocol, and each token is valid in all of them."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
import pytest

from duetime.client import AsyncClient
from duetime.engine.pools import Pools
from duetime.engine.registry_copy import RegistryCopy
from duetime.metrics.scraper import Scraper
from duetime.model.settings import load
from duetime.protocols.lmstfy import LmstfyApp, make_parts
from duetime.protocols.tokens import Tokens
from duetime.protocols.v1 import V1App
from duetime.protocols.v1.app import TokenGate
from duetime.server.supervision.siblings import Alone
from duetime.stores.open import open_store
from tests.protocols.v1.server import listen

SECRETS = ["01JCSECRET", "schlüssel", "密钥", "a+b c%20d", "ÿ"]


@dataclass(frozen=True)
class Urls:
    native: str
    lmstfy: str
    tokens: Tokens


@pytest.fixture
async def urls() -> AsyncIterator[Urls]:
    async with (
        Pools({"default": "memory:"}, open_store=open_store) as pools,
        RegistryCopy(lambda: pools.registry) as registry_copy,
    ):
        settings = load(flags={}, environment={}, file={})
        parts = make_parts(settings, pools, registry_copy, Scraper(pools, Alone()))
        native = V1App(pools, TokenGate(parts.tokens, parts.limits))
        async with listen(native) as first, listen(LmstfyApp(parts)) as second:
            yield Urls(first.url, second.url, parts.tokens)


@pytest.mark.parametrize("secret", SECRETS)
async def test_one_token_is_valid_in_every_protocol(urls: Urls, secret: str) -> None:
    await urls.tokens.create("default", "shop", "", secret=secret)
    raw = secret.encode()
    async with httpx.AsyncClient(verify=False) as http:
        replies = [
            await http.get(f"{urls.native}/v1/queues/shop/mail", headers={"authorization": b"Bearer " + raw}),
            await http.get(f"{urls.native}/v1/queues/shop/mail", headers={"x-token": raw}),
            await http.get(f"{urls.lmstfy}/api/shop/mail", headers={"x-token": raw}),
            await http.get(f"{urls.lmstfy}/api/shop/mail", params={"token": secret}),
        ]
        refused = [
            await http.get(f"{urls.native}/v1/queues/shop/mail", headers={"x-token": raw + b"\xff"}),
            await http.get(f"{urls.lmstfy}/api/shop/mail", headers={"x-token": raw + b"\xff"}),
            await http.get(f"{urls.lmstfy}/api/shop/mail?token=%ff"),
        ]
    async with AsyncClient(urls.native, namespace="shop", token=secret) as client:
        await client.queue("mail").push("hello")

    assert [reply.status_code for reply in replies] == [200, 200, 404, 404]
    assert [reply.status_code for reply in refused] == [401, 401, 401]
