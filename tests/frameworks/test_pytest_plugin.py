"""The pytest plugin, in a pytest of its own: found by its entry point, used by name."""

from importlib.metadata import entry_points

import pytest

from tests.frameworks.conftest import Program
from tests.plugins.ci import missing_service

SHOP = """
    import duetime

    app = duetime.App("redis://production.example/0")
    SENT = []

    @app.task
    def send(to: str) -> None:
        SENT.append(to)

    def sign_up(name):
        send.later("10m", name)
"""

TESTS = """
    from shop import SENT, send, sign_up

    def test_box(duetime_box):
        sign_up("ann")
        duetime_box.assert_pushed(send, to="ann")
        duetime_box.travel("10m")
        duetime_box.run()
        assert SENT == ["ann"]

    def test_inline(duetime_inline):
        SENT.clear()
        sign_up("bob")
        assert SENT == ["bob"]
"""


@pytest.fixture(autouse=True)
def plugin() -> None:
    if "duetime" not in {point.name for point in entry_points(group="pytest11")}:
        missing_service("the installed project is older than its entry point; run make setup-dev")


def run(program: Program, *more: str) -> str:
    return program.run("-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", *more)


def test_the_fixtures_use_the_app_of_the_setting(program: Program) -> None:
    program.write("shop.py", SHOP)
    program.write("test_shop.py", TESTS)
    program.write("pytest.ini", "[pytest]\nduetime_app = shop:app\n")
    assert "2 passed" in run(program)


def test_the_fixtures_use_the_app_of_a_fixture(program: Program) -> None:
    program.write("shop.py", SHOP)
    program.write("test_shop.py", TESTS)
    program.write("conftest.py", "import pytest, shop\n@pytest.fixture\ndef duetime_app():\n    return shop.app\n")
    assert "2 passed" in run(program)


def test_without_an_app_it_says_what_is_missing(program: Program) -> None:
    program.write("shop.py", SHOP)
    program.write("test_shop.py", TESTS)
    with pytest.raises(AssertionError, match="name the App under test"):
        run(program)
