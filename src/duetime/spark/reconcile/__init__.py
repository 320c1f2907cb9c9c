"""The pipeline `reconcile`: pushes accepted jobs again that a store has lost."""
