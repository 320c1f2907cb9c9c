"""The protocols by which clients reach the engine: /v1, lmstfy, ouqiang, TCP, and what they share."""
