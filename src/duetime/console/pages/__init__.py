"""One module per page of the console, with the actions of that page."""
