"""The HTTP face that pd-prefill and pd-decode share: validate, tokenize, detokenize, stream, abort."""
