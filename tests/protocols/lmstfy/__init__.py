"""The lmstfy contract as a black-box HTTP suite. A file's number is the point of "Must match exactly" that it shows."""
