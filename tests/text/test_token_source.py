"""Every token of an epoch comes once, in contiguous rows, and any place can be sought."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from fractus_core.api import Batch, FractusError, Split
from fractus_text.shards import TokenShards
from fractus_text.source import TokenSource

END = 0
"""End of text; no other token of these corpora is 0."""


def make_shards(lengths: list[int], shard: int = 50, validation: float = 0.2) -> TokenShards:
    """Documents of these lengths, ends included; every other token is different."""
    tokens = np.arange(1, sum(lengths) + 1)
    tokens[np.cumsum(lengths) - 1] = END
    count = len(lengths)
    return TokenShards(
        directory=None,  # type: ignore[arg-type]
        fingerprint=f"made of {lengths}",
        replaced=0,
        validation=validation,
        tokens=len(tokens),
        starts=np.cumsum([0, *lengths[:-1]]),
        sizes=np.array(lengths),
        hashes=np.random.default_rng(0).permutation(count).astype(np.uint64),
        shards=np.split(tokens, range(shard, len(tokens), shard)),
    )


def open_source(
    made: TokenShards, split: Split = "train", *, batch: int = 3, chunk: int = 5, seed: int = 1
) -> TokenSource:
    return TokenSource(made, split, batch_size=batch, chunk_len=chunk, seed=seed)


def split_documents(made: TokenShards, split: Split) -> list[list[int]]:
    return [
        made.take(np.arange(start, start + length)).tolist()
        for start, length in zip(*made.documents(split), strict=True)
    ]


def flat(batches: list[Batch]) -> list[int]:
    """The rows of an epoch, one after the other."""
    rows = torch.cat([batch.observations for batch in batches], dim=1)
    return rows.flatten().tolist()


def equal(one: Batch, other: Batch) -> bool:
    return all(
        torch.equal(getattr(one, name), getattr(other, name))
        for name in ("observations", "targets", "starts")
    )


def cut_at_boundaries(observed: list[int]) -> list[list[int]]:
    """The documents that were read. One that was held back in part has no end-of-text token."""
    documents: list[list[int]] = []
    before = END
    for token in observed:
        if before == END or token not in (before + 1, END):
            documents.append([])
        documents[-1].append(token)
        before = token
    return documents


CASES = {
    "lengths": st.lists(st.integers(2, 40), min_size=8, max_size=40).filter(lambda n: sum(n) > 120),
    "batch": st.integers(1, 5),
    "chunk": st.integers(1, 12),
    "seed": st.integers(0, 3),
}


@given(**CASES)
@example(lengths=[2, 2, 2, 21, 28, 28, 28, 28], batch=1, chunk=1, seed=0)  # cut to one token
def test_an_epoch_is_every_document_once(
    lengths: list[int], batch: int, chunk: int, seed: int
) -> None:
    made = make_shards(lengths)
    source = open_source(made, batch=batch, chunk=chunk, seed=seed)
    for _ in range(2):
        batches = list(itertools.islice(source, source.chunks))
        observed = flat(batches)
        tail = source.tokens - len(observed)
        assert 1 <= tail <= batch * chunk
        unread = split_documents(made, "train")
        *whole, last = cut_at_boundaries(observed)
        for document in whole:
            unread.remove(document)  # fails if it is not there, or not for the second time
        assert any(document[: len(last)] == last for document in unread)
        assert sum(map(len, unread)) - len(last) == tail


@given(**CASES)
def test_targets_are_the_next_tokens(lengths: list[int], batch: int, chunk: int, seed: int) -> None:
    source = open_source(make_shards(lengths), batch=batch, chunk=chunk, seed=seed)
    batches = list(itertools.islice(source, source.chunks))
    observed = torch.cat([batch.observations for batch in batches], dim=1).flatten()
    targets = torch.cat([batch.targets for batch in batches], dim=1).flatten()
    assert torch.equal(targets[:-1], observed[1:])
    for one in batches:
        assert one.observations.shape == one.targets.shape == (batch, chunk)
        assert one.observations.dtype == one.targets.dtype == torch.int64


@given(**CASES)
def test_starts_are_where_another_document_is_read(
    lengths: list[int], batch: int, chunk: int, seed: int
) -> None:
    source = open_source(make_shards(lengths), batch=batch, chunk=chunk, seed=seed)
    for _ in range(2):
        batches = list(itertools.islice(source, source.chunks))
        lengths_read = map(len, cut_at_boundaries(flat(batches)))
        document_starts = {0, *itertools.accumulate(lengths_read)}
        for row in range(batch):
            for number, one in enumerate(batches):
                place = (row * source.chunks + number) * chunk
                # A document starts here, or did in the last chunk after its first token.
                crossed = document_starts & set(range(place - chunk + 1, place + 1))
                assert one.starts[row].item() == (number == 0 or bool(crossed))


@given(data=st.data(), **CASES)
def test_seek_gives_the_same_batches(
    data: st.DataObject, lengths: list[int], batch: int, chunk: int, seed: int
) -> None:
    made = make_shards(lengths)
    source = open_source(made, batch=batch, chunk=chunk, seed=seed)
    skipped = data.draw(st.integers(0, 2 * source.chunks))
    for _ in range(skipped):
        next(source)
    cursor = json.loads(json.dumps(source.cursor()))
    expected = list(itertools.islice(source, source.chunks + 2))  # over the end of an epoch
    other = open_source(made, batch=batch, chunk=chunk, seed=seed)
    next(other)
    other.seek(cursor)
    assert other.cursor() == cursor
    found = list(itertools.islice(other, source.chunks + 2))
    assert all(map(equal, found, expected))
    assert other.fingerprint == source.fingerprint


def test_epochs_and_seeds_shuffle_documents() -> None:
    made = make_shards([10] * 40)
    epochs = []
    for seed in (1, 2):
        source = open_source(made, seed=seed)
        epochs += [flat(list(itertools.islice(source, source.chunks))) for _ in range(2)]
    in_order = [token for document in split_documents(made, "train") for token in document]
    assert len({tuple(epoch) for epoch in [*epochs, in_order[: len(epochs[0])]]}) == 5


def test_the_shuffle_of_a_seed_never_changes() -> None:
    # A resumed run needs this order, whatever has been upgraded in between.
    source = open_source(make_shards([1000] * 10), batch=1, chunk=1000)
    order = [int(next(source).observations[0, 0]) // 1000 for _ in range(7)]
    assert order == [2, 4, 8, 5, 0, 6, 3]


def test_validation_is_one_pass_in_order() -> None:
    made = make_shards(list(range(5, 45)))
    source = open_source(made, "validation", batch=2, chunk=7)
    batches = list(source)
    in_order = [token for document in split_documents(made, "validation") for token in document]
    assert flat(batches) == in_order[: source.chunks * 14]
    assert len(batches) == source.chunks == (len(in_order) - 1) // 14
    with pytest.raises(StopIteration):
        next(source)
    source.seek({"epoch": 0, "chunk": 0})
    assert all(map(equal, source, batches))


def test_all_is_one_pass_over_everything() -> None:
    made = make_shards(list(range(5, 45)))
    source = open_source(made, "all", batch=1, chunk=1)
    everything = [*split_documents(made, "train"), *split_documents(made, "validation")]
    assert sorted(flat(list(source))) == sorted(itertools.chain(*everything))[1:]  # less one end


def test_short_validation_has_fewer_rows() -> None:
    made = make_shards([10] * 40)  # 80 tokens held back
    source = open_source(made, "validation", batch=64, chunk=16)
    assert (source.rows, source.chunks) == (4, 1)
    assert next(source).observations.shape == (4, 16)


def test_train_and_validation_share_nothing() -> None:
    made = make_shards(list(range(5, 45)))
    train = open_source(made, batch=1, chunk=1)
    seen = set(flat(list(itertools.islice(train, 3 * train.chunks))))
    assert not seen & set(flat(list(open_source(made, "validation", batch=1, chunk=1)))) - {END}


def test_too_short() -> None:
    made = make_shards([10] * 40)
    with pytest.raises(
        FractusError, match="validation split has 80 tokens and a batch of 1 x 80 needs 81"
    ):
        open_source(made, "validation", batch=9, chunk=80)
    with pytest.raises(
        FractusError, match="train split has 320 tokens and a batch of 4 x 80 needs 321"
    ):
        open_source(made, batch=4, chunk=80)
    assert open_source(made, batch=4, chunk=79).chunks == 1


@pytest.mark.parametrize("cursor", [(0, 10_000), (0, -1), (-1, 0)])
def test_no_such_place(cursor: tuple[int, int]) -> None:
    with pytest.raises(FractusError, match="no chunk"):
        open_source(make_shards([10] * 40)).seek({"epoch": cursor[0], "chunk": cursor[1]})


def test_fingerprint_tells_whether_the_same_batches_come() -> None:
    made = make_shards([10] * 40)
    same = [open_source(made), open_source(make_shards([10] * 40))]
    different = [
        open_source(made, batch=2),
        open_source(made, chunk=4),
        open_source(made, seed=2),
        open_source(made, "validation"),
        open_source(make_shards([10] * 41)),
        open_source(make_shards([10] * 40, validation=0.3)),
    ]
    assert same[0].fingerprint == same[1].fingerprint
    assert len({source.fingerprint for source in [*same, *different]}) == 7
    validation = [open_source(made, "validation", seed=seed) for seed in (1, 2)]
    assert validation[0].fingerprint == validation[1].fingerprint
