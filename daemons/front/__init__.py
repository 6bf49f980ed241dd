"""The HTTP face of pd-prefill and pd-decode: validate, tokenize, detokenize, stream, abort."""
