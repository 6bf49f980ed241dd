"""Every word that two processes say to each other: typed, versioned, strict, free of sockets."""
