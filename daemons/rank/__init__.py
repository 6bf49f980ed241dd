"""What the rank processes of pd-prefill and pd-decode share: how they are equipped and report."""
