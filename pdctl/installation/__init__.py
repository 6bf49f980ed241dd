"""What ``pdctl install`` puts on a host: wanted (pure), state (what is there), steps (doing it)."""
