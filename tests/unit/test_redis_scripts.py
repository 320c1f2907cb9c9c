"""The Lua scripts as text: each says what it takes, answers and touches, and does nothing else."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from duetime.stores import redis as package
from duetime.stores.redis.scripts import sources
from tests.plugins.ci import missing_service

pytestmark = pytest.mark.store_kind("redis")

FOLDER = Path(package.__file__).parent / "lua"
MODULES = {path.stem: path.read_text() for path in (FOLDER / "modules").glob("*.lua")}
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.lua"))
VERBS = [name for name in SCRIPTS if not name.startswith("registry_")]
WRITES = r"'(HSET|HSETNX|HDEL|HINCRBY|ZADD|ZREM|ZREMRANGEBYRANK|SET|UNLINK|PERSIST|PEXPIRE)'"
KEY_NAMES = "jobs|wait|tries|info|leases|dead|ttl|meta|agenda|damaged|totals|repaired"

# What the modules' functions write, by the name a script calls them by.
PLANS = {
    "add_waiting": {"wait", "ttl"},
    "remove_waiting": {"wait", "ttl"},
    "add_expiry": {"ttl", "agenda"},
    "note_added": {"totals"},
    "commit_added": {"jobs", "wait", "meta"},
    "register": {"agenda", "meta", "totals"},
    "resolve_taken": {"wait", "leases", "dead", "ttl", "jobs", "tries", "info", "damaged", "totals"},
    "forget": {"jobs", "tries", "info"},
    "die": {"dead", "tries", "totals"},
    "expire": {"dead", "tries", "jobs", "info", "totals"},
    "end_lease": {"leases", "wait", "ttl", "dead", "tries", "jobs", "info", "totals"},
    "set_error": {"info"},
    "set_aside": {"damaged", "ttl", "jobs", "tries", "info"},
    "sweep": {"ttl", "meta"},
    "begin_with_removal": {"meta"},
    "count": {"totals"},
    "age_totals": {"totals"},
}


def split(name: str) -> tuple[dict[str, str], str]:
    """The header's parts by name, and the code behind it."""
    text = (FOLDER / f"{name}.lua").read_text()
    header, _, code = text.partition("\n\n")
    assert all(line.startswith("--") for line in header.splitlines())
    lines = [line.removeprefix("--").strip() for line in header.splitlines()]
    parts: dict[str, str] = {"purpose": ""}
    current = "purpose"
    for line in lines:
        if found := re.match(r"(Modules|KEYS|ARGV|Returns|Touches): (.*)", line):
            current, line = found.groups()  # noqa: PLW2901
            parts[current] = ""
        parts[current] = f"{parts[current]} {line}".strip()
    return parts, re.sub(r"--.*", "", code)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_header_is_complete(name: str) -> None:
    header, _ = split(name)

    modules = ["Modules"] if name in VERBS else []
    assert list(header) == ["purpose", *modules, "KEYS", "ARGV", "Returns", "Touches"]
    assert all(header.values())


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_argument_that_is_used_is_named(name: str) -> None:
    header, code = split(name)
    named = {int(number) for number in re.findall(r"(?:^|· )(\d+)(?:\.\.)? ", header["ARGV"])}
    used = {int(number) for number in re.findall(r"\b(?:ARGV|args)\[(\d+)\]", code)}
    used |= {int(number) for number in re.findall(r"unpack\(ARGV, (\d+)", code)}
    used |= {int(number) for number in re.findall(r"= (\d+), #ARGV", code)}

    open_ended = {int(number) for number in re.findall(r"(\d+)\.\. ", header["ARGV"])}
    in_a_loop = set(range(2, 9)) if name == "configure" else set[int]()

    assert used <= named
    assert named <= used | open_ended | in_a_loop


@pytest.mark.parametrize("name", VERBS)
def test_every_key_that_is_written_is_named(name: str) -> None:
    header, code = split(name)
    named = set(header["Touches"].split()) - {"nothing"}
    written: set[str] = set()
    for function, keys in PLANS.items():
        if f"q.{function}(" in code:
            written |= keys
    for line in code.splitlines():
        if re.search(WRITES, line) or re.search(r"q\.(zadd|zrem|hset|hdel|zadds|zrems|hsets|hdels)\b", line):
            written |= set(
                re.findall(r"q\.(jobs|wait|tries|info|leases|dead|ttl|meta|agenda|damaged|totals|repaired)\b", line)
            )
            written |= {"mark"} if ":mark:" in line else set()
    if "q.commit()" in code:
        written.add("meta")
        if "q.next_end" in code or "q.add_waiting(" in code or "q.end_lease(" in code:
            written.add("agenda")

    if name == "extend":
        written.remove("meta")  # commit() writes the state there only if it changed

    assert written <= named


@pytest.mark.parametrize("name", SCRIPTS)
def test_forbidden_words(name: str) -> None:
    code = split(name)[1]

    assert not re.search(r"'(KEYS|SCAN|HSCAN|ZSCAN|HGETALL|FLUSHALL|EVAL)'", code), "no walks over whole keys"
    assert not re.search(r"'(ZRANGESTORE|GETEX|LMPOP|ZMPOP|EXPIRETIME|HEXPIRE)'", code), "nothing newer than Redis 6.2"
    assert "math.random" not in code


@pytest.mark.parametrize("name", VERBS)
def test_scripts_validate_before_the_first_write(name: str) -> None:
    _, code = split(name)
    if not re.search(WRITES, code) and "q.commit()" not in code:
        return
    first_write = min(
        found.start()
        for found in re.finditer(WRITES + r"|q\.commit\(\)|flush\(\)$|q\.commit_added\(", code, re.MULTILINE)
    )

    if name == "push_one":  # it looks at the few keys that it writes, and its first write looks by itself
        assert "'HSETNX', q.jobs" in code[first_write : first_write + 20]
        assert all(re.search(rf"\bq\.{key}\b", code[:first_write]) for key in ("wait", "meta", "agenda"))
    elif name.endswith("_one"):
        written = set(re.findall(r"q\.(jobs|wait|tries|leases|meta|agenda)\b", code[first_write:]))
        looked = code[:first_write] + (MODULES["header"] if "q.first_delivery(" in code[:first_write] else "")
        assert written <= set(re.findall(r"call\('(?:H|Z)[A-Z]+', q\.(\w+)", looked))
    else:
        assert "q.begin()" in code[:first_write]


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_loader_puts_the_modules_in_front(name: str) -> None:
    texts = [MODULES[module] for module in modules_of(name)]
    assert sources()[name] == "\n".join([*texts, (FOLDER / f"{name}.lua").read_text()])


def modules_of(name: str) -> list[str]:
    return split(name)[0].get("Modules", "").split()


@pytest.mark.parametrize("name", VERBS)
def test_a_script_names_the_modules_whose_functions_it_calls_and_no_others(name: str) -> None:
    text = re.sub(r"--.*", "", sources()[name])
    made = set(re.findall(r"^function q\.(\w+)", text, re.MULTILINE))
    assert set(re.findall(r"\bq\.(\w+)\(", text)) <= made

    for module in modules_of(name):
        offered = set(re.findall(r"^function q\.(\w+)", MODULES[module], re.MULTILINE))
        others = text.replace(re.sub(r"--.*", "", MODULES[module]), "")
        assert module == "keys" or offered & set(re.findall(r"\bq\.(\w+)\b", others)), f"{module} is not needed"


def test_every_function_of_a_module_is_called() -> None:
    texts = [re.sub(r"--.*", "", (FOLDER / f"{name}.lua").read_text()) for name in SCRIPTS]
    code = "\n".join([*texts, *(re.sub(r"--.*", "", text) for text in MODULES.values())])
    made = re.findall(r"^function q\.(\w+)", code, re.MULTILINE)
    assert [function for function in made if len(re.findall(rf"\bq\.{function}\b", code)) < 2] == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_luacheck(name: str, tmp_path: Path) -> None:
    program = shutil.which("luacheck")
    if program is None:
        missing_service("luacheck is not installed")
    script = tmp_path / f"{name}.lua"
    script.write_text(sources()[name])
    config = tmp_path / "luacheckrc"
    config.write_text('stds.redis = { read_globals = { "redis", "struct", "KEYS", "unpack" }, globals = { "ARGV" } }\n')
    options = ["--std", "lua51+redis", "--max-line-length", "120", "--codes", "--formatter", "plain"]

    result = subprocess.run(
        [program, *options, "--config", str(config), str(script)],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )

    assert result.returncode <= 1, result.stderr
    spare = sources()[name].count("\n") - (FOLDER / f"{name}.lua").read_text().count("\n")
    assert [line for line in result.stdout.splitlines() if not is_spare_name(line, spare)] == []


def is_spare_name(warning: str, lines_of_modules: int) -> bool:
    """The module keys has more names than any one script needs."""
    found = re.match(r".*?:(\d+):\d+: \(W211\)", warning)
    return found is not None and int(found[1]) <= lines_of_modules
