"""Words of a page in letters of English, to find what was not translated."""

import re
from html.parser import HTMLParser

UNSEEN = {"script", "style", "pre", "code", "textarea"}
READ = {"title", "aria-label", "placeholder", "alt"}
NO_SENTENCE = re.compile(r"duetime [a-z ]+|\S*[/:.=@_\d]\S*")
"""Commands, addresses, files, settings, ids and times."""
NAMES = {"Duetime", "English", "UTC", "ID", "URL", "JSON", "GET", "POST", "Spark", "LAKE", "asyncio", "apprise", "base"}
NAMES |= {
    "php",
    "Redis",
    "TLS",
    "HTTP",
    "delayqueue",
    "GiB",
    "MiB",
    "KiB",
    "sqlite",
    "starttls",
    "ssl",
    "dev",
    "read",
    "write",
    "admin",
    "drain",
    "lake",
    "cron",
    "health",
}
"""Names of things: of units, formats, programs, and what settings and tokens are called."""


class VisibleText(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._unseen = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._unseen += tag in UNSEEN
        self.texts += [value for name, value in attrs if value and (name in READ or name == "data-confirm")]

    def handle_endtag(self, tag: str) -> None:
        self._unseen -= tag in UNSEEN

    def handle_data(self, data: str) -> None:
        self.texts += [] if self._unseen else [data]


def english_words(page: str, *data: str) -> set[str]:
    """What a visitor sees in English letters, without names of things and the test's own data."""
    text = VisibleText()
    text.feed(page)
    return {
        word
        for one in text.texts
        for word in re.findall(r"[A-Za-z]{2,}", NO_SENTENCE.sub(" ", one))
        if word not in NAMES and word not in data
    }
