"""`token` and `limit`: through the registry of a store, and through the admin API of a server."""

from pathlib import Path

import httpx
import pytest

from duetime.cli import options
from duetime.cli.options import Target
from tests.e2e.conftest import Serve
from tests.e2e.shell import Shell


def test_a_token_is_made_listed_by_label_and_revoked(shell: Shell) -> None:
    [made] = shell.json("token", "create", "--namespace", "shop", "--description", "the shop", "--scope", "write")
    assert made.keys() == {"namespace", "pool", "token", "label", "description", "scopes"}
    assert (made["namespace"], made["scopes"]) == ("shop", ["write"])
    [listed] = shell.json("token", "list", "--namespace", "shop")
    assert listed == {name: made[name] for name in ("namespace", "pool", "label", "description", "scopes")}
    assert made["token"] not in shell.ok("token", "list", "--namespace", "shop").out
    assert shell.json("token", "list") == []
    unknown = shell.run("token", "revoke", "deadbeef", "--namespace", "shop", "--json")
    assert (unknown.code, unknown.error["code"]) == (1, "token_not_found")
    [revoked] = shell.json("token", "revoke", made["token"], "--namespace", "shop")
    assert (revoked["label"], revoked["revoked"]) == (made["label"], True)
    assert shell.json("token", "list", "--namespace", "shop") == []


def test_text_for_people_is_the_token_alone(shell: Shell) -> None:
    made = shell.ok("token", "create")
    assert len(made.out.strip()) == 26
    assert "not shown again" in made.err


def test_the_admin_api_of_the_default_server_is_found(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = serve("--dev")
    for name, url in (("API_PORT", server.api), ("ADMIN_PORT", server.admin)):
        monkeypatch.setattr(options, name, int(url.rpartition(":")[2]))
    monkeypatch.setattr("duetime.cli.options.DEFAULT_URL", server.api)
    for chosen in (Shell("", tmp_path), Shell(server.api, tmp_path), Shell(server.admin, tmp_path)):
        chosen.ok("token", "create", "--description", chosen.url or "default")
    assert len(Shell("", tmp_path).json("token", "list")) == 3


@pytest.mark.parametrize(
    ("url", "admin"),
    [
        ("http://me:word@shop:7777", "http://me:word@shop:7778"),
        ("http://shop:8080/x", "http://shop:8080/x"),
        ("https://shop", "https://shop"),
        ("redis://shop:7777/0", "redis://shop:7777/0"),
    ],
)
def test_only_the_usual_port_of_the_api_becomes_the_admin_port(url: str, admin: str) -> None:
    assert Target(url=url).admin_address == admin


def test_the_admin_api_can_have_a_variable_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUETIME_URL", "http://jobs.example.com")
    monkeypatch.setenv("DUETIME_ADMIN_URL", "http://admin.example.com")
    assert Target().admin_address == "http://admin.example.com"
    assert Target(url="http://other:7777").admin_address == "http://other:7778"


def test_a_new_token_may_read_and_write(shell: Shell) -> None:
    assert shell.json("token", "create")[0]["scopes"] == ["read", "write"]
    assert shell.json("token", "create", "--scope", "admin")[0]["scopes"] == ["admin"]


@pytest.mark.parametrize("through", ["store", "server"])
def test_listed_tokens_show_their_scopes(shell: Shell, serve: Serve, through: str) -> None:
    where = ("--url", shell.url if through == "store" else serve().admin)
    shell.ok("token", "create", "--scope", "read", *where)
    assert [one["scopes"] for one in shell.json("token", "list", *where)] == [["read"]]


def test_the_error_of_a_missing_token_says_how_to_give_one(shell: Shell, serve: Serve) -> None:
    ran = shell.run("queue", "counts", "--url", serve().api)
    assert ran.code != 0
    assert "DUETIME_TOKEN" in ran.err


@pytest.mark.parametrize("through", ["store", "server"])
def test_a_limit_is_set_listed_obeyed_and_removed(shell: Shell, serve: Serve, through: str) -> None:
    server = serve()
    where = ("--url", shell.url if through == "store" else server.admin)
    [made] = shell.json("token", "create", *where)
    assert shell.json("limit", "list", *where) == []
    shell.ok("limit", "set", made["token"], "--write", "1", "--every", "1h", *where)
    [limit] = shell.json("limit", "list", *where)
    assert (limit["label"], limit["read"], limit["write"], limit["every_s"]) == (made["label"], 0, 1, 3600)

    def push() -> int:
        header = {"authorization": f"Bearer {made['token']}"}
        return httpx.post(f"{server.api}/v1/queues/default/mail/jobs", json={"body": "x"}, headers=header).status_code

    answers = [push()]
    while answers[-1] != 429 and len(answers) < 1_000:  # a server follows its store's registry within a second
        answers.append(push())
    assert answers[-1] == 429
    shell.ok("limit", "remove", made["label"], *where)
    assert shell.json("limit", "list", *where) == []
    wrong = shell.run("limit", "set", made["label"], "--every", "1m", *where, "--json")
    assert (wrong.code, wrong.error["code"]) == (2, "invalid_request")
    wrong = shell.run("limit", "set", "nobody", "--read", "1", *where, "--json")
    assert (wrong.code, wrong.error["code"]) == (1, "token_not_found")


def test_the_hash_of_a_password_lets_an_account_in(shell: Shell, serve: Serve, tmp_path: Path) -> None:
    short = shell.run("user", "hash", "--json", stdin="short\n")
    assert (short.code, short.error["code"]) == (2, "invalid_request")
    hashed = shell.ok("user", "hash", stdin="correct horse\n").out.strip()
    assert "horse" not in hashed
    config = tmp_path / "accounts.toml"
    config.write_text(f'[accounts]\nann = "{hashed}"\n')
    server = serve("--config", str(config))
    tokens = f"{server.admin}/token/ns"
    assert httpx.get(tokens, auth=("ann", "correct horse")).status_code == 200
    assert httpx.get(tokens, auth=("ann", "wrong horse")).status_code == 401
    config.write_text('[accounts]\nann = "correct horse"\n')
    refused = shell.run("config", "--config", str(config))
    assert refused.code == 2
    assert "duetime user hash" in refused.err
    assert "horse" not in refused.err
