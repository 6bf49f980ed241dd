"""pd-decode: reserves pages, says where to write, and goes on as if it had run the prefill."""
