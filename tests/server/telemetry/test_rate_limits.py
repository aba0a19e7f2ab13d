from fedlens_server.telemetry.rate_limits import RateLimits


def test_a_flood_of_one_kind_passes_in_part_and_is_counted_with_its_addresses() -> None:
    limits = RateLimits()

    passed = [limits.admits("flood", 20, n / 1000, f"10.0.0.{n % 3}") for n in range(12_000)]

    assert (sum(passed), limits.over(59.0)) == (20, [])
    (kept_back,) = limits.over(60.0)
    assert str(kept_back) == "... and 11,980 more of this kind from 3 addresses in the last 60 s"


def test_another_kind_passes_during_a_flood_and_the_next_minute_begins_anew() -> None:
    limits = RateLimits()

    passed = [limits.admits(kind, 1, now) for kind, now in (("a", 0.0), ("a", 1.0), ("b", 1.0))]
    ended = limits.over(60.0)

    assert passed == [True, False, True]
    assert [(each.kind, each.lines, each.addresses) for each in ended] == [("a", 1, 0)]
    assert (limits.admits("a", 1, 60.0), limits.keep_back) == (True, False)
