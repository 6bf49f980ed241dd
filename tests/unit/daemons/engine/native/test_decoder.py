from __future__ import annotations

import ctypes as c
import dataclasses
import functools
from array import array

import msgspec
import pytest
import torch

from daemons.engine.attention import paged_attention
from daemons.engine.batch import lay_out
from daemons.engine.config import Weights
from daemons.engine.device import Place
from daemons.engine.kv_cache import KvMemory, make_memory, make_pool, memory_of
from daemons.engine.models import decoder as torchs
from daemons.engine.models import read_spec
from daemons.engine.native import abi
from daemons.engine.native import decoder as native
from daemons.engine.native.attention import NativeAttention
from daemons.engine.native.decoder import NativeDecoder, serves
from daemons.engine.quant import rounded
from daemons.engine.quant_linear import forms_of
from daemons.engine.step import Item
from daemons.engine.weights import Checkpoint
from daemons.protocol.ids import RoomKey
from tests.support.checkpoints import KINDS, VOCABULARY, checkpoint
from tests.support.engines import WindowPages
from tests.support.native import library, team

PAGE_SIZE = 16
TEXT = tuple((7 * index * index + 3) % VOCABULARY for index in range(300))
CPU = Place(torch.device("cpu"), torch.float32)
CPU_BF16 = dataclasses.replace(CPU, dtype=torch.bfloat16)
SERVED = [kind for kind in KINDS if "moe" not in kind]


@functools.cache
def model_of(kind: str, place: Place, members: int) -> NativeDecoder:
    directory = checkpoint(kind)
    return native.build(read_spec(directory), Checkpoint(directory, place), place, team(members))


def memory(model: NativeDecoder, place: Place) -> KvMemory:
    spec = model.spec
    return memory_of(make_pool(spec.layers, spec.kv_heads, 64, PAGE_SIZE, spec.head_dim, place))


def item(first: int, last: int, room: int = 1) -> Item:
    pages = range((room - 1) * 20, room * 20)
    return Item(RoomKey(room, 1), TEXT[first:last], first, tuple(pages), samples=True)


def run(
    kind: str, forwards: list[list[Item]], place: Place = CPU, members: int = 1
) -> list[torch.Tensor]:
    """Return what each forward of one pool leaves, fp32 [tokens, hidden]."""
    model = model_of(kind, place, members)
    kept = memory(model, place)
    left = []
    with torch.inference_mode():
        for items in forwards:
            batch = lay_out(items, PAGE_SIZE, place.device)
            left.append(model.hidden(batch, NativeAttention(team(members), kept, batch)))
    return left


@pytest.mark.parametrize("place", [CPU, CPU_BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("kind", SERVED)
def test_it_computes_what_torch_computes(kind: str, place: Place) -> None:
    directory = checkpoint(kind)
    reference = torchs.build(read_spec(directory), Checkpoint(directory, place), place)
    model = model_of(kind, place, 2)
    kept = memory(model, place)
    forwards = [[item(0, 200)], [item(200, 290), item(0, 33, 2)], [item(290, 291), item(33, 34, 2)]]
    with torch.inference_mode():
        for items, found in zip(forwards, run(kind, forwards, place, 2), strict=True):
            batch = lay_out(items, PAGE_SIZE, place.device)
            wanted = reference.hidden(batch, paged_attention(kept.full, batch))
            limit = 5e-6 if place is CPU else 6e-2  # of the largest
            assert (found - wanted).abs().max() <= limit * wanted.abs().max()
            logits = reference.logits(wanted)
            assert (model.logits(found) - logits).abs().max() <= limit * logits.abs().max()


@pytest.mark.parametrize("place", [CPU, CPU_BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3"])
def test_a_rows_result_is_the_same_to_the_bit_in_any_chunk_batch_or_team(
    kind: str, place: Place
) -> None:
    whole = run(kind, [[item(0, 290)]], place)[0]
    others = [item(0, 64, 3)]
    chunks = [[item(0, 77)], [item(77, 78), *others], [*others, item(78, 250)]]
    steps = [[item(at, at + 1), item(0, 5, 2)] for at in range(250, 290)]
    for members in (1, 2):
        left = run(kind, [*chunks, *steps], place, members)
        rows = [left[0], left[1][:1], left[2][64:], *(step[:1] for step in left[3:])]
        assert torch.equal(torch.cat(rows), whole)


@pytest.mark.parametrize("border", [1, 31, 32, 33, 127, 128, 129, 150])
@pytest.mark.parametrize("kind", ["qwen3", "gemma2", "gemma3"])  # heads of 32: no plain scale
def test_a_chunk_may_end_within_a_panel_a_block_or_with_one(kind: str, border: int) -> None:
    whole = run(kind, [[item(0, 290)]])[0]
    assert torch.equal(torch.cat(run(kind, [[item(0, border)], [item(border, 290)]])), whole)


@pytest.mark.parametrize("place", [CPU, CPU_BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["gemma2", "gemma3", "mistral"])
def test_window_pages_change_no_bit_wherever_they_lie(kind: str, place: Place) -> None:
    whole = run(kind, [[item(0, 290)]], place)[0]
    model = model_of(kind, place, 2)
    spec = model.spec
    kept = make_memory(
        [window is not None for window in spec.windows],
        kv_heads=spec.kv_heads,
        pages=64,
        window_pages=9,
        page_size=PAGE_SIZE,
        head_dim=spec.head_dim,
        place=place,
    )
    kept.memory.fill_(float("nan"))  # a page that is used again would show what it held
    window = WindowPages(20, PAGE_SIZE, [8, 2, 5, 0, 7, 3, 6])
    left = []
    for first, last in ((0, 77), (77, 78), (78, 150), (150, 240), (240, 241), (241, 290)):
        part = dataclasses.replace(item(first, last), pages=tuple(range(63, 43, -1)))
        cover = window.cover(first, last - first)
        part = dataclasses.replace(part, window=cover[0], window_first=cover[1])
        batch = lay_out([part], PAGE_SIZE, place.device)
        with torch.inference_mode():
            left.append(model.hidden(batch, NativeAttention(team(2), kept, batch)))
    assert torch.equal(torch.cat(left), whole)


@pytest.mark.parametrize("place", [CPU, CPU_BF16], ids=["fp32", "bf16"])
def test_logits_of_a_row_do_not_depend_on_its_neighbours(place: Place) -> None:
    model = model_of("llama", place, 2)
    draw = torch.Generator().manual_seed(1)
    rows = torch.randn(53, model.decoder_spec.hidden_size, generator=draw)
    together = model.logits(rows)
    assert torch.equal(together, torch.cat([model.logits(row.unsqueeze(0)) for row in rows]))


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("place", [CPU, CPU_BF16], ids=["fp32", "bf16"])
def test_a_few_rows_that_meet_several_panels_at_once_are_as_among_many(
    place: Place, members: int
) -> None:
    outputs = 32 * 18 + 5  # the last panels are no whole group, the very last is not full
    draw = torch.Generator().manual_seed(4)
    weight = torch.randn(outputs, 64, generator=draw).to(place.dtype)
    rows = torch.randn(29, 64, generator=draw)
    store = _store(place)
    head = store.matrix(weight, None, is_gated=False)
    together = _logits_of(place, head, outputs, rows, members)
    normed = torch.nn.functional.rms_norm(rows, (64,), eps=1e-5).to(place.dtype)
    assert torch.allclose(together, normed.float() @ weight.float().T, rtol=0.02, atol=0.1)
    for count in range(1, 18):
        few = _logits_of(place, head, outputs, rows[:count], members)
        assert torch.equal(few, together[:count])


def test_torchs_products_and_the_kernels_take_turns_on_a_thread() -> None:
    model = model_of("llama", CPU_BF16, 1)
    draw = torch.Generator().manual_seed(1)
    rows = torch.randn(17, model.decoder_spec.hidden_size, generator=draw)
    square = torch.randn(64, 64, generator=draw).bfloat16()
    wanted = square @ square, model.logits(rows)
    for _ in range(3):
        assert torch.equal(square @ square, wanted[0])
        assert torch.equal(model.logits(rows), wanted[1])


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("place", [CPU, CPU_BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["llama", "gemma2"])  # the latter caps its logits
def test_the_likeliest_tokens_are_those_of_the_largest_logits(
    kind: str, place: Place, members: int
) -> None:
    model, items = model_of(kind, place, members), [item(0, 90), item(0, 1, 2), item(0, 40, 3)]
    kept = memory(model, place)
    batch = lay_out(items, PAGE_SIZE, place.device)
    attend = NativeAttention(team(members), kept, batch)
    logits = model.logits(model.hidden(batch, attend))
    wanted = logits.argmax(dim=-1)
    assert model.likeliest(attend, array("i", range(131))).tolist() == wanted.tolist()
    some = array("i", [130, 89, 90])
    assert model.likeliest(attend, some).tolist() == wanted[some.tolist()].tolist()
    assert torch.equal(model.scores(attend, some), logits[some.tolist()])
    assert torch.equal(model.scores(attend, some[:1]), logits[130:])


def test_the_likeliest_of_equals_is_the_lowest_and_there_is_none_of_what_is_not_finite() -> None:
    model = model_of("llama", CPU, 2)
    vocabulary = model.spec.vocab_size
    columns = torch.zeros(vocabulary, 4)
    columns[[5, 40, vocabulary - 1], 0] = 3.0  # equals, in panels of several members
    columns[:, 1] = float("nan")
    columns[:, 1][:7] = 0.0
    columns[7, 2] = float("inf")
    columns[:, 3] = -1.0
    found = [_likeliest_of(model, columns[:, place]) for place in range(4)]
    assert found == [5, -1, -1, 0]


def _likeliest_of(model: NativeDecoder, logits: torch.Tensor) -> int:
    """Return what the head chooses when it is made to yield these logits."""
    size = model.decoder_spec.hidden_size
    head = torch.zeros(len(logits), size)
    head[:, 0] = logits
    norm, stream = torch.ones(size), torch.zeros(1, size)
    stream[0, 0] = 1.0
    made = abi.Model.from_buffer_copy(model._model)
    address = model._team.library.calls.pd_matrix_new(
        0, head.data_ptr(), None, len(logits), size, 0
    )
    made.norm, made.head = norm.data_ptr(), address
    tokens = array("i", [0])
    try:
        abi.checked(
            model._team.library.calls.pd_likeliest(
                c.byref(made),
                model._team.address,
                model._team.space,
                stream.data_ptr(),
                None,
                1,
                tokens.buffer_info()[0],
            )
        )
    finally:
        model._team.library.calls.pd_matrix_free(address)
    return tokens[0]


def test_a_model_without_its_own_head_reads_embeddings_out_of_the_head() -> None:
    tied = model_of("llama-tied", CPU, 1)
    assert tied._model.embedding is None
    assert model_of("llama", CPU, 1)._model.embedding is not None


def test_what_the_kernels_do_not_know_is_left_to_torch() -> None:
    assert serves(read_spec(checkpoint("llama")), CPU)
    assert not serves(read_spec(checkpoint("qwen3-moe")), CPU)
    assert not serves(read_spec(checkpoint("llama")), Place(torch.device("cuda"), torch.bfloat16))
    odd = msgspec.structs.replace(read_spec(checkpoint("llama")), intermediate_size=97)
    assert not serves(odd, CPU)


@pytest.mark.parametrize("place", [CPU, CPU_BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("weights", ["int8", "int4"])
@pytest.mark.parametrize("kind", ["llama-tied", "llama-bias", "gemma3"])
def test_rounded_weights_compute_what_they_stand_for(
    kind: str, weights: Weights, place: Place
) -> None:
    directory = checkpoint(kind)
    spec = read_spec(directory)
    kept = memory(model_of(kind, place, 1), place)
    models = [
        native.build(spec, Checkpoint(directory, place), place, team(1), weights),
        torchs.build(spec, Checkpoint(directory, place), place, forms_of(weights)),
    ]
    for items in ([item(0, 200)], [item(200, 201), item(0, 33, 2)]):
        batch = lay_out(items, PAGE_SIZE, place.device)
        with torch.inference_mode():
            found = models[0].hidden(batch, NativeAttention(team(1), kept, batch))
            wanted = models[1].hidden(batch, paged_attention(kept.full, batch))
            limit = 5e-6 if place is CPU else 6e-2
            assert (found - wanted).abs().max() <= limit * wanted.abs().max()
            logits = models[1].logits(wanted)
            assert (models[0].logits(found) - logits).abs().max() <= limit * logits.abs().max()


@pytest.mark.parametrize("weights", ["int8", "int4"])
@pytest.mark.parametrize("place", [CPU, CPU_BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("gated", [False, True])
def test_a_rounded_matrix_is_the_plain_one_of_its_expanded_weight(
    *, gated: bool, place: Place, weights: Weights
) -> None:
    draw = torch.Generator().manual_seed(4)
    weight = torch.randn(86, 64, generator=draw).to(place.dtype)
    held, store = rounded(weight, weights), _store(place)
    one = store.rounded(held, None, is_gated=gated)
    two = store.matrix(held.expanded(), None, is_gated=gated)
    rows = torch.randn(33, 64, generator=draw)
    outs = [_logits_of(place, head, 86, rows, 2) for head in (one, two)]
    if place is CPU:  # a product and a sum may be one operation there
        assert torch.allclose(outs[0], outs[1], rtol=1e-5, atol=1e-5)
    else:
        assert torch.equal(outs[0], outs[1])


def _store(place: Place) -> native._Store:
    directory = checkpoint("llama")
    return native._Store(
        read_spec(directory), Checkpoint(directory, place), place, library(), "auto"
    )


def _logits_of(
    place: Place, head: int, outputs: int, rows: torch.Tensor, members: int
) -> torch.Tensor:
    """Return what a head makes of rows [rows, 64] that are normed without a weight."""
    norm, own = torch.ones(64), team(members)
    facts = abi.Model.from_buffer_copy(model_of("llama", place, 2)._model)
    facts.head, facts.vocabulary, facts.norm = head, outputs, norm.data_ptr()
    logits = torch.empty(len(rows), outputs)
    fault = own.library.calls.pd_logits(
        c.byref(facts), own.address, own.space, rows.data_ptr(), None, len(rows),
        logits.data_ptr(),
    )  # fmt: skip
    abi.checked(fault)
    return logits
