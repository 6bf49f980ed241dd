"""One module per verb; each imports what it needs inside its function, so that --help is fast."""
