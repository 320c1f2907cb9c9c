"""The store contract, one file per verb. Every test runs on every store and speaks only the Store protocol."""
