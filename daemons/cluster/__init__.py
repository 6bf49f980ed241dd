"""The one file that operators write, read once and the same for daemons, units and pdctl."""
