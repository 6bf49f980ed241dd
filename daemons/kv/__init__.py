"""Pure bookkeeping of memory: which page and which row belongs to whom."""
