"""The only place with torch: weights, the paged KV pool, attention, sampling, batches."""
