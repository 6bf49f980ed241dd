"""Every word that two processes say to each other: typed, versioned, strict, and free of sockets."""
