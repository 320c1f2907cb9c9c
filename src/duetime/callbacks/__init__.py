"""Topics: queues whose jobs are delivered to a callback URL, and the courier that delivers them."""
