"""pd-lb: picks a pair, draws rooms, posts to both legs, and tells the client one story."""
