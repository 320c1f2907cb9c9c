"""The Helm chart: values and settings are checked by its schema, and what it renders fits the server and the image."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from duetime import __version__
from duetime.model.settings import FIELDS, OTHER_VARIABLES, variable
from duetime.stores.open import SCHEMES

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "duetime"
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
HASH = "$argon2id$v=19$m=65536,t=3,p=4$c2FsdHNhbHRzYWx0c2FsdA$aGFzaGhhc2hoYXNoaGFzaA"
FULL: dict[str, Any] = {
    "replicas": 3,
    "store": {"existingSecret": "database", "migrate": True},
    "settings": {"log_format": "json", "workers": 2, "access_log": True},
    "accounts": {"ann": HASH},
    "serviceMonitor": {"enabled": True, "labels": {"team": "shop"}},
    "worker": {
        "enabled": True,
        "image": "shop:1",
        "app": "shop.tasks:app",
        "queues": ["mail", "recall"],
        "tokenSecret": "token",
        "keda": {"enabled": True, "within": "10m"},
    },
}


def test_the_chart_has_the_version_of_the_release() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_the_default_values_are_valid_and_all_described() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.validate(VALUES, SCHEMA)
    assert VALUES.keys() == SCHEMA["properties"].keys() - {"global"}


@pytest.mark.parametrize("scheme", [one for one in SCHEMES if one not in ("memory", "sqlite")])
def test_every_store_that_pods_can_share_is_taken(scheme: str) -> None:
    jsonschema.validate({"store": {"url": f"{scheme}://host/0"}}, SCHEMA)


@pytest.mark.parametrize(
    "wrong",
    [
        {"replicas": 0},
        {"replica": 2},
        {"store": {"url": "sqlite:///jobs.db"}},
        {"settings": {"store": "redis://other"}},
        {"accounts": {"ann": "password"}},
        {"worker": {"app": "shop.tasks"}},
        {"worker": {"keda": {"within": "soon"}}},
    ],
)
def test_wrong_values_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, SCHEMA)


if helm := shutil.which("helm", path=f"{ROOT}/.venv/go:{os.environ['PATH']}"):  # `make lint-tools` builds it

    def render(tmp_path: Path, values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        file = tmp_path / "values.json"
        file.write_text(json.dumps(values))
        command = [str(helm), "template", "jobs", str(CHART), "--kube-version", "1.33.0", "-f", str(file)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    def objects(tmp_path: Path, values: dict[str, Any]) -> dict[str, dict[str, Any]]:
        ran = render(tmp_path, values)
        assert ran.returncode == 0, ran.stderr
        found = [one for one in yaml.safe_load_all(ran.stdout) if one]
        return {f"{one['kind']}/{one['metadata']['name']}": one for one in found}

    def test_a_trial_renders(tmp_path: Path) -> None:
        found = objects(tmp_path, {"store": {"url": "redis://redis:6379/0"}})
        assert found.keys() == {
            "Secret/jobs-duetime-store",
            "Secret/jobs-duetime-settings",
            "Service/jobs-duetime",
            "Service/jobs-duetime-pods",
            "PodDisruptionBudget/jobs-duetime",
            "StatefulSet/jobs-duetime",
        }
        [port] = found["Service/jobs-duetime-pods"]["spec"]["ports"]
        assert port["name"] == "api", "the admin API stays on loopback without accounts"

    def test_everything_renders_and_fits_the_server(tmp_path: Path) -> None:
        found = objects(tmp_path, FULL)
        server = found["StatefulSet/jobs-duetime"]["spec"]
        assert server["replicas"] == 3
        [container] = server["template"]["spec"]["containers"]
        names = {one["name"] for one in container["env"]}
        assert names <= {variable(name) for name in FIELDS} | set(OTHER_VARIABLES)
        assert {"DUETIME_STORE", "DUETIME_JOURNAL", "DUETIME_ADMIN_HOST"} <= names
        settings = found["Secret/jobs-duetime-settings"]["stringData"]["duetime.toml"]
        file = tmp_path / "duetime.toml"
        file.write_text(settings)
        shown = subprocess.run(
            [str(Path(sys.executable).with_name("duetime")), "config", "--config", str(file), "--json"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert shown.returncode == 0, shown.stderr
        assert '"log_format"' in shown.stdout
        assert tomllib.loads(settings)["accounts"] == {"ann": HASH}

        migrate = found["Job/jobs-duetime-migrate"]
        assert migrate["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
        monitor = found["ServiceMonitor/jobs-duetime"]["spec"]
        [endpoint] = monitor["endpoints"]
        service = found["Service/jobs-duetime-pods"]
        assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}

    def test_pods_run_without_rights_and_with_a_read_only_root(tmp_path: Path) -> None:
        user = re.search(r"^USER (\d+):", (ROOT / "deploy/Dockerfile").read_text(), re.MULTILINE)
        assert user
        pods = [
            one["spec"]["template"]["spec"]
            for one in objects(tmp_path, FULL).values()
            if "template" in one.get("spec", {})
        ]
        assert len(pods) == 3
        for pod in pods:
            assert pod["securityContext"]["runAsUser"] == int(user[1])
            assert pod["securityContext"]["runAsNonRoot"] is True
            [container] = pod["containers"]
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            mounted = {mount["name"] for mount in container["volumeMounts"]}
            assert mounted - {"data"} <= {volume["name"] for volume in pod["volumes"]}

    def test_workers_are_scaled_by_the_jobs_that_fall_due(tmp_path: Path) -> None:
        found = objects(tmp_path, FULL)
        scaled = found["ScaledObject/jobs-duetime-worker"]["spec"]
        assert [one["metadata"]["url"].rpartition(".svc:7777")[2] for one in scaled["triggers"]] == [
            "/v1/queues/default/mail/due?within=10m",
            "/v1/queues/default/recall/due?within=10m",
        ]
        assert {one["metadata"]["valueLocation"] for one in scaled["triggers"]} == {"counts.0"}
        assert "replicas" not in found["Deployment/jobs-duetime-worker"]["spec"], "KEDA decides"

    @pytest.mark.parametrize(
        ("values", "error"),
        [
            ({}, "store.existingSecret or store.url must be given"),
            ({"store": {"url": "redis://r"}, "serviceMonitor": {"enabled": True}}, "serviceMonitor needs accounts"),
            ({"store": {"url": "redis://r"}, "worker": {"enabled": True}}, "worker.image must be"),
            ({"store": {"url": "sqlite:jobs.db"}}, "does not match pattern"),
        ],
    )
    def test_what_cannot_work_is_refused(tmp_path: Path, values: dict[str, Any], error: str) -> None:
        ran = render(tmp_path, values)
        assert ran.returncode != 0
        assert error in ran.stderr
