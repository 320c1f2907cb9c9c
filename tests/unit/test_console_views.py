"""Saved filters of the jobs list."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from duetime.console.saved_views import KIND, SavedView, saved_views
from duetime.stores.registry import Record


@pytest.mark.parametrize("value", [b"", b"\xff", b"[]", b'{"pool": "default"}'])
def test_a_view_that_cannot_be_read_hides_no_other_and_no_page(value: bytes, caplog: pytest.LogCaptureFixture) -> None:
    view = SavedView("default", "shop", "mail", "late", {"since": "-1h"})
    records = [Record(KIND, "broken", value, 1), Record(KIND, view.key, msgspec.json.encode(view), 2)]
    copy = SimpleNamespace(list_records=lambda kind: records)
    visit: Any = SimpleNamespace(parts=SimpleNamespace(registry_copy=copy), sees=lambda pool, namespace: True)

    assert saved_views(visit) == [view]
    assert [record.message for record in caplog.records] == ["view_unreadable"]
