import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_wheel_holds_everything_in_the_package(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=150,
    )

    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "src"
    files = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    wanted = {
        name for name in files if name.endswith((".py", ".lua", ".sql", "py.typed", ".html", ".css", ".js", ".toml"))
    }
    assert wanted <= names
    assert "duetime/py.typed" in names
    assert "duetime/console/static/vendor/htmx.min.js" in names
