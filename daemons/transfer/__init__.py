"""One-sided writes into memory that a peer registered: the seam, its backends, and the plan."""
