"""The examples of each rule hold, and the laws hold on each of them."""

import re

import pytest

from rewriters import RULES, FileResult, Settings, rewrite
from rewriters.safety import comments


def settings(code: str) -> Settings:
    rule = RULES[code]
    options = {"select": (code,), **rule.options}
    return Settings(unsafe=not rule.safe, **options)


def run(code: str, text: str) -> FileResult:
    return rewrite(text.encode(), settings(code))


CHANGES = [
    pytest.param(code, *pair, id=f"{code}-{n}") for code, rule in RULES.items() for n, pair in enumerate(rule.changes)
]
LEAVES = [
    pytest.param(code, text, id=f"{code}-{n}") for code, rule in RULES.items() for n, text in enumerate(rule.leaves)
]
REFUSES = [
    pytest.param(code, *pair, id=f"{code}-{n}") for code, rule in RULES.items() for n, pair in enumerate(rule.refuses)
]


@pytest.mark.parametrize(("code", "before", "after"), CHANGES)
def test_a_rule_changes_its_examples(code: str, before: str, after: str) -> None:
    result = run(code, before)
    assert result.error == ""
    assert result.after.decode() == after
    assert any(site.changes for site in result.sites)


@pytest.mark.parametrize(("code", "text"), LEAVES)
def test_a_rule_leaves_what_it_is_not_for(code: str, text: str) -> None:
    result = run(code, text)
    assert (result.error, result.after.decode()) == ("", text)
    assert {site.action for site in result.sites} <= {"skipped", "already"}


@pytest.mark.parametrize(("code", "text", "reason"), REFUSES)
def test_a_rule_says_what_it_refuses(code: str, text: str, reason: str) -> None:
    result = run(code, text)
    assert (result.error, result.after.decode()) == ("", text)
    assert [site.action for site in result.sites if re.search(re.escape(reason), site.reason)][-1] in (
        "refused",
        "reported",
    )


@pytest.mark.parametrize(("code", "before", "after"), CHANGES)
def test_a_second_run_changes_nothing_and_comments_stay(code: str, before: str, after: str) -> None:
    assert run(code, after).after.decode() == after
    assert comments(before.encode()) - comments(after.encode()) == {}


TAGGED = [case for case in CHANGES if RULES[case.values[0]].tags]


@pytest.mark.parametrize(("code", "before", "after"), TAGGED)
def test_taking_the_tags_out_gives_the_bytes_back(code: str, before: str, after: str) -> None:
    if "annopipe as" not in before:
        assert run("AP301", after).after.decode() == before


@pytest.mark.parametrize("code", RULES)
def test_every_rule_has_examples_and_explains_itself(code: str) -> None:
    rule = RULES[code]
    assert rule.code == code
    assert rule.changes or rule.refuses
    assert rule.summary.endswith(".")
    assert len(rule.summary) < 110
