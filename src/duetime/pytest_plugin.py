"""Fixtures for the tests of programs that push jobs: `duetime.testing` without the `with`.

    # pytest.ini: [pytest] duetime_app = shop:app; or a fixture `duetime_app` of your own

    def test_sign_up(duetime_box):
        sign_up("ann")
        duetime_box.assert_pushed(send_mail, to="ann")

pytest finds this by itself where Duetime is installed, so nothing is imported before a fixture is used.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from duetime.testing import Box
    from duetime.worker.app import App


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("duetime_app", "Where the App of the program under test is: module:app", default="")


@pytest.fixture
def duetime_app(pytestconfig: pytest.Config) -> "App":
    """The App under test: that of the setting `duetime_app`."""
    from duetime.worker.daemon import load_app  # noqa: PLC0415 (not before it is used)

    place = pytestconfig.getini("duetime_app")
    if not place:
        pytest.fail(
            "name the App under test: `duetime_app = module:app` in pytest's settings, or a fixture duetime_app"
        )
    return load_app(place)


@pytest.fixture
def duetime_box(duetime_app: "App") -> "Iterator[Box]":
    """Pushes of the App go to a store in memory; `duetime.testing.in_memory`."""
    from duetime.testing import in_memory  # noqa: PLC0415

    with in_memory(duetime_app) as box:
        yield box


@pytest.fixture
def duetime_inline(duetime_app: "App") -> Iterator[None]:
    """Pushes of the App run immediately; `duetime.testing.inline`."""
    from duetime.testing import inline  # noqa: PLC0415

    with inline(duetime_app):
        yield
