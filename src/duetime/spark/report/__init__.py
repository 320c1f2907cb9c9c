"""The report: one self-contained HTML file per period, that one would like to show one's boss."""
