from daemons.bootstrap.dp_ranks import DpRanks


def test_known_rooms_are_answered_and_others_left_out() -> None:
    ranks = DpRanks()
    ranks.put(1, 0, 0.0)
    ranks.put(2, 3, 0.0)
    assert ranks.get([1, 2, 9], 1.0) == {1: 0, 2: 3}


def test_an_entry_ends_with_its_time() -> None:
    ranks = DpRanks(keep_s=120.0)
    ranks.put(1, 0, 0.0)
    ranks.put(2, 0, 50.0)
    assert ranks.get([1, 2], 120.0) == {2: 0}
    ranks.tick(120.0)
    assert len(ranks) == 1


def test_the_latest_word_holds_and_lasts_longer() -> None:
    ranks = DpRanks(keep_s=120.0)
    ranks.put(1, 0, 0.0)
    ranks.put(2, 0, 0.0)
    ranks.put(1, 5, 100.0)
    ranks.tick(150.0)
    assert ranks.get([1, 2], 150.0) == {1: 5}


def test_the_oldest_give_way_when_there_are_too_many() -> None:
    ranks = DpRanks(limit=1000)
    for room in range(1, 100_001):
        ranks.put(room, 0, 0.0)
    assert len(ranks) == 1000
    assert ranks.get([99_000, 99_001, 100_000], 0.0) == {99_001: 0, 100_000: 0}
