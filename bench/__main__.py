"""Find the benchmark by its name, print what it runs on, and run it."""

import ast
import importlib
import sys
from pathlib import Path

from bench.report import environment

NOT_BENCHMARKS = {"report"}


def available() -> dict[str, str]:
    """Name -> first line of the docstring. Nothing is imported: a benchmark may need what is not installed."""
    found: dict[str, str] = {}
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        if path.stem not in NOT_BENCHMARKS:
            docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
            found[path.stem] = docstring.partition("\n")[0]
    return found


def main() -> int:
    benchmarks = available()
    if len(sys.argv) < 2:
        print("Usage: python -m bench NAME [ARGUMENTS]\n")
        for name, summary in benchmarks.items():
            print(f"  {name:<12} {summary}")
        return 0
    name = sys.argv[1]
    if name not in benchmarks:
        print(f"There is no benchmark {name!r}; there are: {', '.join(benchmarks) or 'none yet'}", file=sys.stderr)
        return 2
    print(environment(), end="\n\n", flush=True)
    sys.argv = [f"python -m bench {name}", *sys.argv[2:]]
    return int(importlib.import_module(f"bench.{name}").main() or 0)


if __name__ == "__main__":
    raise SystemExit(main())
