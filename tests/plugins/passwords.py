"""Accounts of duetime.toml for tests: real argon2 hashes that are quick to check."""

from argon2 import PasswordHasher

_quick = PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)


def hashed(password: str) -> str:
    return _quick.hash(password)
