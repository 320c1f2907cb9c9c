import asyncio

import httpx

import duetime
from duetime.protocols.logins import PER_ADDRESS
from tests.console.conftest import ACCOUNT, Visitor
from tests.plugins.served import StartServer
from tests.plugins.serving import Served


def test_a_stranger_sees_only_the_login(visitor: Visitor) -> None:
    answer = visitor.get("queues", find="x")

    assert answer.url.path == "/console/login"
    assert answer.url.params["next"] == "/console/queues?find=x"
    assert "nav" not in answer.text.split("<main")[0].split("</head>")[1]
    assert visitor.get("live").url.path == "/console/login"


def test_the_login_leads_to_the_page_that_was_asked_for(visitor: Visitor) -> None:
    visitor.get("queues")
    answer = visitor.post("login", user=ACCOUNT[0], password=ACCOUNT[1], next="/console/queues?find=x")
    assert answer.url.path == "/console/queues"

    outside = Visitor(visitor.admin)
    with outside.http:
        answer = outside.post("login", user=ACCOUNT[0], password=ACCOUNT[1], next="//evil.example/console/")
        assert answer.url.host == httpx.URL(visitor.admin).host
        assert answer.url.path == "/console/"


def test_the_cookie_is_out_of_reach_for_scripts_and_other_sites(visitor: Visitor) -> None:
    reply = visitor.http.post(
        "/console/login",
        data={"user": ACCOUNT[0], "password": ACCOUNT[1]},
        headers={"origin": visitor.admin},
        follow_redirects=False,
    )
    cookie = reply.headers["set-cookie"].lower()

    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "path=/console" in cookie


def test_the_cookie_is_secure_behind_a_trusted_proxy_with_tls(visitor: Visitor) -> None:
    def cookie(**headers: str) -> str:
        reply = visitor.http.post(
            "/console/login",
            data={"user": ACCOUNT[0], "password": ACCOUNT[1]},
            headers={"origin": visitor.admin, **headers},
            follow_redirects=False,
        )
        return reply.headers["set-cookie"].lower()

    assert "secure" in cookie(**{"x-forwarded-proto": "https"})
    assert "secure" in cookie(**{"x-forwarded-proto": "HTTPS, http"})
    assert "secure" not in cookie(**{"x-forwarded-proto": "http"})
    assert "secure" not in cookie()


def test_a_wrong_password_is_refused_in_the_same_words_as_an_unknown_user(visitor: Visitor) -> None:
    wrong = visitor.log_in(ACCOUNT[0], "wrong")
    unknown = visitor.log_in("nobody", "wrong")

    assert wrong.status_code == unknown.status_code == 401
    assert "Wrong user name or password" in wrong.text
    assert "Wrong user name or password" in unknown.text
    assert 'value="nobody"' in unknown.text  # what was typed is kept
    assert visitor.get("").url.path == "/console/login"


def test_logging_out_ends_the_session_on_the_server(boss: Visitor) -> None:
    secret = boss.http.cookies["duetime_session"]
    boss.post("logout")

    boss.http.cookies.set("duetime_session", secret, path="/console")
    assert boss.get("").url.path == "/console/login"


def test_another_site_cannot_write(boss: Visitor) -> None:
    fields = {"pool": "default", "namespace": "default", "queue": "mail"}
    for headers in (
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site", "origin": boss.admin},
        {"sec-fetch-site": "same-site"},
        {},
    ):
        answer = boss.http.post("/console/do/pause", data=fields, headers=headers)
        assert answer.status_code == 403, headers


def test_every_answer_forbids_inline_script_and_framing(boss: Visitor) -> None:
    for path in ("", "queues", "login", "static/console.css", "no-such-page"):
        policy = boss.get(path).headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
    assert boss.get("no-such-page").status_code == 404


def test_a_token_opens_its_own_namespace_and_no_other(console_server: Served, boss: Visitor, visitor: Visitor) -> None:
    with httpx.Client(base_url=console_server.admin, auth=ACCOUNT) as admin:
        made = admin.post("/token/tenant", data={"description": "test", "scopes": "admin,read,write"}).json()["token"]
        weak = admin.post("/token/tenant", data={"description": "test", "scopes": "read"}).json()["token"]
    headers = {"x-token": made}
    httpx.post(
        f"{console_server.api}/v1/queues/tenant/own/jobs", json={"body": "x"}, headers=headers
    ).raise_for_status()
    tenant = Visitor(console_server.admin)
    with tenant.http:
        assert tenant.post("login", namespace="tenant", password=weak).status_code == 401
        assert tenant.post("login", namespace="other", password=made).status_code == 401
        assert tenant.post("login", namespace="tenant", password=made).status_code == 200

        assert "own" in tenant.get("queues").text
        assert tenant.get("queue", pool="default", namespace="tenant", queue="own").status_code == 200
        assert tenant.get("queue", pool="default", namespace="default", queue="mail").status_code == 404
        assert tenant.get("queue", pool="second", namespace="tenant", queue="own").status_code == 404

        with httpx.Client(base_url=console_server.admin, auth=ACCOUNT) as admin:
            admin.delete(f"/token/tenant/{made}").raise_for_status()
        assert tenant.get("queues").url.path == "/console/login"


def test_a_viewer_sees_and_cannot_act(boss: Visitor, client: duetime.Client) -> None:
    client.queue("seen").push("x")
    boss.post("do/add-user", name="val", role="viewer", password="looks at things")
    viewer = Visitor(boss.admin)
    with viewer.http:
        assert viewer.log_in("val", "looks at things").status_code == 200
        page = viewer.get("queue", pool="default", namespace="default", queue="seen")
        assert "seen" in page.text
        assert "/console/do/" not in page.text
        assert "New job" not in page.text
        answer = viewer.post("do/pause", pool="default", namespace="default", queue="seen")
        assert answer.status_code == 403
        assert not client.queue("seen").status().rules.paused

        boss.post("do/remove-user", name="val")
        assert viewer.get("queues").url.path == "/console/login"


def test_failed_attempts_to_log_in_are_limited_by_address(visitor: Visitor) -> None:
    guess = {"namespace": "tenant", "password": "guess"}

    def attempt(address: str) -> int:
        headers = {"origin": visitor.admin, "x-forwarded-for": address}
        return visitor.http.post("/console/login", data=guess, headers=headers).status_code

    assert [attempt("203.0.113.9") for _ in range(PER_ADDRESS + 1)] == [401] * PER_ADDRESS + [429]
    assert attempt("203.0.113.10") == 401


async def test_parallel_attempts_to_log_in_are_counted_before_they_are_checked(visitor: Visitor) -> None:
    headers = {"origin": visitor.admin, "x-forwarded-for": "203.0.113.11"}

    async def attempt(http: httpx.AsyncClient, number: int) -> int:
        data = {"user": f"name{number}", "password": "guess"}
        return (await http.post("/console/login", data=data, headers=headers)).status_code

    async with httpx.AsyncClient(base_url=visitor.admin, timeout=60) as http:
        statuses = await asyncio.gather(*(attempt(http, number) for number in range(4 * PER_ADDRESS)))
    assert sorted(statuses) == [401] * PER_ADDRESS + [429] * 3 * PER_ADDRESS


def test_logins_that_succeed_are_not_counted(visitor: Visitor) -> None:
    headers = {"origin": visitor.admin, "x-forwarded-for": "203.0.113.12"}
    data = {"user": ACCOUNT[0], "password": ACCOUNT[1]}
    for _ in range(PER_ADDRESS + 1):
        visitor.http.cookies.clear()
        assert visitor.http.post("/console/login", data=data, headers=headers).status_code == 200


def test_dev_is_open_on_this_machine_only(start_server: StartServer) -> None:
    server = start_server("--dev")
    everybody = Visitor(server.admin)
    with everybody.http:
        page = everybody.get("")
        assert page.status_code == 200
        assert "--dev" in page.text
        assert everybody.http.get("/console/", headers={"host": "evil.example"}).status_code == 403
    first = next(line for line in server.message if line.startswith("  "))
    assert first.split() == ["console", f"{server.admin}/console/"]
