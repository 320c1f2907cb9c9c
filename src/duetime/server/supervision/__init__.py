"""Several worker processes under one supervisor: how they are started, watched, replaced and talked to."""
