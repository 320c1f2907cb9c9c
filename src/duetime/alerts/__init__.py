"""Problems that last, who looks for them and who is told."""
