"""What all stores on SQL databases share: rules, rows and verbs. Statements and connections are per dialect."""
