"""A server of the Model Context Protocol, so that agents can read queues and, if allowed, change them."""
