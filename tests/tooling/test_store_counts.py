from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytest_plugins = ["pytester"]

SAMPLE = """
    import pytest
    from tests.plugins.ci import missing_service

    @pytest.fixture(params=["memory", "sqlite"])
    def store_kind(request):
        return request.param

    def test_on_each(store_kind):
        pass

    @pytest.mark.store_kind("redis")
    def test_marked():
        pass

    def test_on_none():
        pass
"""
WITH_A_SKIP = (
    SAMPLE
    + """
    def test_without_service():
        pytest.skip("no such program")
"""
)
WITH_A_MISSING_SERVICE = (
    SAMPLE
    + """
    def test_without_service():
        missing_service("no such program")
"""
)


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run(sample: str, *arguments: str, ci: bool = False) -> pytest.RunResult:
        monkeypatch.setenv("CI", "true" if ci else "")
        pytester.makepyfile(sample)
        return pytester.runpytest_subprocess("-p", "tests.plugins.store_counts", *arguments)

    return run


@pytest.mark.parametrize("arguments", [(), ("-p", "xdist", "-n", "2")], ids=["one process", "xdist"])
def test_counts_per_store(run, arguments: tuple[str, ...]) -> None:
    result = run(SAMPLE, *arguments)

    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["(no store) *1 passed*0 failed", "memory *1 passed*", "redis *1 passed*", "sqlite *1 passed*", "*4 passed*"]
    )


def test_stores_option_leaves_out_the_others_and_keeps_the_storeless(run) -> None:
    result = run(SAMPLE, "--stores", "memory")

    result.assert_outcomes(passed=2, deselected=2)


@pytest.mark.parametrize("arguments", [(), ("-p", "xdist", "-n", "2")], ids=["one process", "xdist"])
def test_a_skip_passes_on_a_laptop_and_fails_in_ci(run, arguments: tuple[str, ...]) -> None:
    laptop = run(WITH_A_SKIP, *arguments)
    ci = run(WITH_A_SKIP, *arguments, ci=True)

    assert laptop.ret == 0
    assert ci.ret == 1
    ci.stdout.fnmatch_lines(
        ["*1 not run, which fails*", "*test_without_service: no such program", "*4 passed, 1 skipped*"]
    )


def test_a_skipped_module_fails_in_ci_too(run) -> None:
    result = run("import pytest\npytest.importorskip('no_such_module')", ci=True)

    assert result.ret != 0


def test_an_expected_failure_is_no_skip(run) -> None:
    result = run("import pytest\n@pytest.mark.xfail\ndef test_it():\n    assert False\n", ci=True)

    assert result.ret == 0


def test_a_missing_service_skips_on_a_laptop_and_fails_in_ci(run) -> None:
    run(WITH_A_MISSING_SERVICE).assert_outcomes(passed=4, skipped=1)
    run(WITH_A_MISSING_SERVICE, ci=True).assert_outcomes(passed=4, failed=1)
