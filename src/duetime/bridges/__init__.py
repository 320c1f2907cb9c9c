"""Working next to a running Laravel, Redisson, lmstfy or php-delayqueue: the same keys and tables, from Python.

`laravel` and `redisson` push and consume on the other system's own data; `relay` moves jobs continuously to or from
Duetime; `lmstfy` and `delayqueue` import. Nothing here is part of the store contract: jobs reach Duetime through
`client/`, and leases are held by `consumer/`.
"""
