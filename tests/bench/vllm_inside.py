"""Runs inside vLLM's own environment: its offline engine, timed; a line of JSON at the end."""

import json
import sys
import time

SAID = 48  # tokens of a decode run


def measured(told):
    """Return tokens/s of each cell."""
    from vllm import LLM, SamplingParams

    longest = max([*told["prompts"], told["context"] + SAID]) + 8
    engine = LLM(
        model=told["model"],
        dtype=told["dtype"],
        enforce_eager=True,
        enable_prefix_caching=False,
        max_model_len=longest,
        max_num_batched_tokens=max(longest, max(told["rooms"]) * told["context"]),
        max_num_seqs=max(told["rooms"]),
    )

    def took_s(rooms, tokens, said):
        prompts = [{"prompt_token_ids": [5 + room] * tokens} for room in range(rooms)]
        wanted = SamplingParams(temperature=0.0, max_tokens=said, ignore_eos=True)
        begin = time.perf_counter()
        engine.generate(prompts, wanted, use_tqdm=False)
        return time.perf_counter() - begin

    took_s(1, 32, 4)
    cells = {}
    for rooms in told["rooms"]:
        took_s(rooms, told["context"], 4)  # what a first call of a shape prepares is no step's
        first_s = took_s(rooms, told["context"], 1)
        cells[f"decode {rooms}"] = (
            rooms * (SAID - 1) / (took_s(rooms, told["context"], SAID) - first_s)
        )
    for tokens in told["prompts"]:
        took_s(1, tokens, 1)
        cells[f"prefill {tokens}"] = tokens / took_s(1, tokens, 1)
    return cells


if __name__ == "__main__":
    print(json.dumps(measured(json.loads(sys.argv[1]))))
