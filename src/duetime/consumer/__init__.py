"""Leases that a consumer holds. Workers, the courier and subscriptions use this package."""
