"""`duetime pipeline demo`: schedule, a lost store, audit, reconcile and report, on one machine."""
