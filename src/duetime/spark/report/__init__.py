"""The pipeline `report`: one self-contained HTML file about a period."""
