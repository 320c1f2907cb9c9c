"""`token`: through the registry of a store."""

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
