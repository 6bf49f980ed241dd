"""pd-prefill: computes prompts by chunks and writes their pages where decode said."""
