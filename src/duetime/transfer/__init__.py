"""Jobs and records on their way between stores: `duetime move`, `backup` and `restore`."""
