"""Programs that run under the peers' own interpreter (`.venv-bench`): standard library and one peer, JSON out."""
