from __future__ import annotations

import pytest

from engine.errors import InvalidInput
from engine.scope import Identity
from operators.messages import Settings
from serve.options import Asking, Person, parse_filters, parse_legs, parse_pairs, parse_value
from serve.settings import Configuration

NOTHING = {"limit": None, "offset": None, "legs": None, "filter_json": None, "scope": None, "threshold": None}


def test_values_are_json_where_they_are_json():
    texts = ["3", "2.5", "true", "null", '["a", 1]', '{"b": 2}', "three", '"3"', "1890-05", ""]
    assert [parse_value(text) for text in texts] == [
        3, 2.5, True, None, ["a", 1], {"b": 2}, "three", "3", "1890-05", "",
    ]  # fmt: skip


def test_pairs_are_split_at_the_first_equals_sign():
    assert parse_pairs(["formula=a=b", "year=1890"]) == {"formula": "a=b", "year": 1890}
    assert parse_pairs([]) == {}


@pytest.mark.parametrize(("pairs", "said"), [(["year"], "KEY=VALUE"), (["=3"], "KEY=VALUE"), (["a=1", "a=2"], "twice")])
def test_wrong_pairs_are_refused(pairs, said):
    with pytest.raises(InvalidInput, match=said):
        parse_pairs(pairs)


def test_options_change_the_configured_settings_only_where_they_say_something():
    configuration = Configuration(search=Settings(limit=7, offset=3, scope_prefix="old"))
    assert Asking(**NOTHING).settings(configuration) == configuration.search
    options = {"limit": 200, "offset": 0, "legs": "dense=2,lexical", "filter_json": '{"a": 1}', "scope": "new"}
    settings = Asking(**{**NOTHING, **options, "threshold": 0.0}).settings(configuration)
    assert settings == Settings(
        limit=200,
        offset=0,
        legs={"dense": 2.0, "lexical": 1.0},
        filters={"a": 1},
        scope_prefix="new",
        score_threshold=0.0,
        candidates=200,
    )


def test_a_person_has_groups_only_with_a_name():
    assert Person(None, ()).identity() is None
    assert Person("ann", ("north", "old")).identity() == Identity("ann", ("north", "old"))
    with pytest.raises(InvalidInput, match="--user"):
        Person(None, ("north",)).identity()


def test_filters_and_legs_that_cannot_be_read_are_refused():
    for text in ("{", "[]", "3"):
        with pytest.raises(InvalidInput, match="no JSON object"):
            parse_filters(text)
    with pytest.raises(InvalidInput, match="no operator"):
        parse_filters('{"a": {"$near": 1}}')
    with pytest.raises(InvalidInput, match="no number"):
        parse_legs("dense=much")
