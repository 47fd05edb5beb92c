"""Every key is declared once: reference, template and explorer agree with the declaration."""

import runpy
from typing import Literal, get_args, get_origin

import pytest
from pydantic.fields import FieldInfo

from airfed.keys import Section, control_of, key_of
from airfed.scenario import template
from airfed.scenario.template import sections

FIELDS = {
    f"{table}.{name}".lstrip("."): info
    for table, kind in sections()
    for name, info in kind.model_fields.items()
    if not info.exclude and not (isinstance(info.annotation, type) and issubclass(info.annotation, Section))
}
SECTIONS = ("channel", "channel.model")  # a table in several kinds, and what tells them apart


@pytest.mark.parametrize(("key", "info"), [(k, i) for k, i in FIELDS.items() if k not in SECTIONS])
def test_every_key_has_a_description(key: str, info: FieldInfo) -> None:
    said = key_of(info)
    assert said is not None
    assert said.meaning
    assert not said.meaning[0].isupper() or said.meaning.split()[0].isupper()  # a sentence is made of it
    assert not said.text.endswith(".")
    if get_origin(info.annotation) is Literal:
        assert set(said.choices) == set(get_args(info.annotation))
    control = control_of(info)
    if control is not None and control.low is not None and control.high is not None:
        assert control.low < control.high
        assert control.kind == "linear" or control.low > 0
        if isinstance(info.default, float | int):
            assert control.low <= info.default <= control.high or key == "seed"


def test_the_page_of_the_documentation_is_up_to_date(repository) -> None:
    written = (repository / "docs" / "scenario.md").read_text(encoding="utf-8")
    page = runpy.run_path(str(repository / "docs" / "_site" / "keys.py"))["page"]
    assert written == page(), "python docs/_site/keys.py docs/scenario.md"
    for key in FIELDS:
        assert f"\n| `{key.rpartition('.')[2]}` |" in written or key == "channel"


def test_the_template_comments_every_key_it_has() -> None:
    lines = template.SCENARIO.splitlines()
    assert max(map(len, lines)) <= 120
    values = [line for line in lines if " = " in line and not line.startswith(" ")]
    assert len(values) >= 30
    assert all("# " in line[2:] for line in values)
    assert (
        "noise_std = 1.0                    # σ [√W]: standard deviation of the receiver noise per real"
        in template.SCENARIO
    )
