"""The body of ``/generate``. Source: SGLang ``managers/io_struct.py`` ``GenerateReqInput``."""

from __future__ import annotations

from typing import Any

import msgspec

from daemons.protocol.api.sampling_params import Wishes


class GenerateBody(msgspec.Struct, frozen=True):
    """Unknown fields are let be, as SGLang does and as its routers add some."""

    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    sampling_params: Wishes | list[Wishes] | None = None
    stream: bool | None = None
    rid: str | list[str] | None = None
    return_logprob: bool | list[bool] | None = None
    logprob_start_len: int | list[int] | None = None
    top_logprobs_num: int | list[int] | None = None
    return_text_in_logprobs: bool | None = None
    image_data: Any = None  # refused, and all that follow
    audio_data: Any = None
    video_data: Any = None
    input_embeds: Any = None
    lora_path: Any = None
    custom_logit_processor: Any = None
    session_params: Any = None
    return_hidden_states: Any = None
    token_ids_logprob: Any = None
