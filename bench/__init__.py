"""Side-by-side benchmarks: `python -m bench NAME`, or `make bench ARGS=NAME`.

Each benchmark is a module here with a `main()`. Peers run in `.venv-bench`, an environment of their own, and all
contenders take turns within each round, so that a noisy minute hits them alike (see `bench.report`).
"""
