"""How much of a prompt may be taken from the cache by who computes the rest.

At least the last token is computed, since it chooses the first one of the answer. A room that
wants log-probabilities of its prompt is run from below the first that it wants.
"""

from __future__ import annotations

from daemons.protocol.generate import Submit


def reusable_pages(submit: Submit, page_size: int) -> int:
    """Return how many whole pages of a prompt need not be run, if they are cached."""
    tokens = len(submit.prompt) - 1
    if submit.sampling.prompt_logprobs is not None:
        tokens = min(tokens, submit.sampling.prompt_logprobs_start - 1)
    return max(0, tokens) // page_size
