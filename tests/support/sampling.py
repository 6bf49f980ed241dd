"""The sampler's definitions once more, in numpy and as plainly as can be: nothing of its code."""

from __future__ import annotations

import numpy as np

from daemons.engine.sampler import NO_TOKEN, NOT_FINITE, uniform
from daemons.protocol.generate import Distribution, Sampling, TokenOut

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


def order_of(scores: Floats) -> list[int]:
    """Return all tokens, the likeliest first, the lowest ids first among equals."""
    return sorted(range(len(scores)), key=lambda token: (-scores[token], token))


def judged(logits: Floats, token: int, top: int) -> TokenOut:
    """Return a token with its raw log-probability and those of the likeliest.

    The likeliest have the largest logits: beside a huge one, those of different logits may have
    the same log-probability.
    """
    logs = logits - logits.max()
    logs = logs - np.log(np.exp(logs).sum())
    best = [other for other in order_of(logits)[:top] if logs[other] > -np.inf]
    return TokenOut(token, float(logs[token]), tuple((other, float(logs[other])) for other in best))


def shaped(
    logits: Floats,
    sampling: Sampling,
    prompt: tuple[int, ...],
    output: tuple[int, ...],
    allowed: frozenset[int] | None,
) -> Floats:
    """Return the scores after steps 1 to 5; ``allowed``: by a grammar, if there is one."""
    scores = logits.astype(np.float64)
    repetition, frequency, presence = np.array(
        [sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty],
        dtype=np.float32,
    ).astype(np.float64)
    for token in {*prompt, *output} if repetition != 1 else set(output):
        score = scores[token]
        with np.errstate(divide="ignore", invalid="ignore"):  # a penalty that fp32 calls 0
            score = score / repetition if score > 0 else score * repetition
        if token in output:
            score = score - frequency * output.count(token) - presence
        with np.errstate(over="ignore"):
            scores[token] = np.float32(score)
    for token, bias in dict(sampling.logit_bias).items():
        scores[token] = np.float32(scores[token]) + np.float32(bias)
    if allowed is not None:
        scores[[token for token in range(len(scores)) if token not in allowed]] = -np.inf
    is_early = len(output) < sampling.min_tokens
    if is_early or (allowed is not None and sampling.ignore_eos):
        ends = [token for token in sampling.ending_token_ids if token < len(scores)]
        left = set(range(len(scores)) if allowed is None else allowed)
        if left - set(ends):
            scores[ends] = -np.inf
    return scores


def chosen(
    logits: Floats,
    sampling: Sampling,
    prompt: tuple[int, ...] = (),
    output: tuple[int, ...] = (),
    allowed: frozenset[int] | None = None,
) -> TokenOut | str:
    """Return the token that a room takes, with the log-probabilities that it wants."""
    if np.isnan(logits).any() or np.isinf(logits.max()):
        return NOT_FINITE
    scores = shaped(logits, sampling, prompt, output, allowed)
    if scores.max() == -np.inf:
        return NO_TOKEN
    if not np.isfinite(scores.max()):
        return NOT_FINITE
    order = order_of(scores)
    temperature = sampling.temperature
    with np.errstate(over="ignore"):
        weights = np.exp((scores - scores.max()) * min(1 / (temperature or 1.0), 1e300))
    if temperature == 0:
        token = order[0]
    else:
        kept = order[: sampling.top_k] if sampling.top_k > 0 else order
        if sampling.top_p < 1:
            sums = np.cumsum(weights[kept])
            before = np.concatenate(([0.0], sums[:-1]))
            kept = kept[: max(1, int((before < sampling.top_p * sums[-1]).sum()))]
        kept = sorted(token for token in kept if weights[token] >= sampling.min_p)
        weights[[token for token in range(len(scores)) if token not in set(kept)]] = 0
        sums = np.cumsum(weights)
        share = uniform(sampling.seed, len(output)) * sums[-1]
        token = int(np.argmax(sums > share))
    if sampling.logprobs is None:
        return TokenOut(token)
    if sampling.logprobs_of is Distribution.RAW:
        return judged(logits.astype(np.float64), token, sampling.logprobs)
    with np.errstate(divide="ignore"):
        return judged(np.log(weights), token, sampling.logprobs)
