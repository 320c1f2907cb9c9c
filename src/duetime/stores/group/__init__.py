"""Several stores as one pool: `store.py` is the store contract, `layout.py` where jobs live, `member.py` one store."""
