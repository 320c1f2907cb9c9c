"""Topics: who keeps them, what goes in and out of them, and what is counted about them."""
