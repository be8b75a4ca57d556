"""`headrace simulate` measures a real graph and foretells it elsewhere; wrong places are refused."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from engine.errors import InvalidInput
from engine.simulate import Place, Times
from serve.cli import main
from serve.simulate_command import parse_places, scaled
from tests.corpora import ingested


def test_places_are_read_as_they_are_written():
    assert parse_places(["shard=8", "generator=1x4x16@1.20", "=1x2"]) == {
        "shard": Place(shards=8),
        "generator": Place(shards=1, replicas=4, slots=16, cost=1.2),
        "": Place(replicas=2),
    }


@pytest.mark.parametrize("text", ["shard", "shard=", "shard=axb", "shard=1x", "shard=0", "shard=1@-1"])
def test_a_place_that_is_none_is_refused(text):
    with pytest.raises(InvalidInput):
        parse_places([text])


def test_lexical_time_grows_with_a_shards_chunks_and_dense_time_with_their_logarithm():
    times = dict.fromkeys(("lexical", "dense", "embed"), Times((1.0,)))
    grown = scaled(times, 1000, shards=10, chunks=10_000_000)
    assert grown["lexical"].served == (1000.0,)
    assert grown["dense"].served == (pytest.approx(2.0),)
    assert grown["embed"].served == (1.0,)
    assert scaled(times, 1000, shards=1, chunks=None) == times


def test_the_command_measures_and_foretells(tmp_path):
    ingested(tmp_path / "corpus")
    questions = [{"_id": str(n), "text": f"Who built the mill number {n}?"} for n in range(20)]
    (tmp_path / "queries.jsonl").write_text("\n".join(map(json.dumps, questions)))
    common = ["simulate", "--corpus", str(tmp_path / "corpus"), "--queries", str(tmp_path / "queries.jsonl")]
    one = CliRunner().invoke(main, [*common, "--clients", "1", "--requests", "500", "--json"], catch_exceptions=False)
    assert one.exit_code == 0, one.output
    found = json.loads(one.stdout)
    assert found["measured"] == 20
    assert 0 < found["forecast"]["p50_s"] < 10
    many = [*common, "--rate", "5", "--place", "shard=1000x2@0.5", "--chunks", "1000000000", "--requests", "50"]
    told = CliRunner().invoke(main, many, catch_exceptions=False)
    assert "1,000.00 an hour" in told.stdout
    wrong = CliRunner().invoke(main, [*common, "--rate", "5", "--place", "shards=8"])
    assert wrong.exit_code == 2
    assert "no stage 'shards'; it has embedder, shard" in wrong.output
