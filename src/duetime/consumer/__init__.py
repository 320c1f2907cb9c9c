"""What every consumer of leases needs; the worker, the courier and subscriptions use it."""
