"""Several stores as one pool: `store.py` implements the contract, `layout.py` says where jobs live."""
