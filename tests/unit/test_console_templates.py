"""The console compiles its templates before the first page."""

from collections.abc import Callable

from jinja2 import DictLoader, Environment

from duetime.console.app import CompiledTemplates


class BusyLoader(DictLoader):
    """Cannot open one file while the process has too many open."""

    is_busy = True

    def get_source(self, environment: Environment, template: str) -> tuple[str, str | None, Callable[[], bool] | None]:
        if self.is_busy and template == "one.html":
            raise OSError(24, "Too many open files")
        return super().get_source(environment, template)


async def test_a_template_that_cannot_be_read_for_a_moment_fails_no_later_page() -> None:
    loader = BusyLoader({"one.html": "one", "two.html": "two"})
    environment = Environment(loader=loader, autoescape=True)
    compiled = CompiledTemplates(environment)
    await compiled.wait()
    loader.is_busy = False
    await compiled.wait()

    assert environment.get_template("one.html").render() == "one"
