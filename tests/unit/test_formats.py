"""The formats: one class for each name that the settings allow."""

from typing import get_args

from service.admission.formats import FORMATS
from service.settings import Input
from service.settings.formats import TRAITS


def test_each_format_of_the_settings_is_one_class_in_one_module() -> None:
    names = get_args(Input.model_fields["format"].annotation)
    assert set(names) == set(TRAITS) == set(FORMATS)
    modules = [type(each).__module__ for each in FORMATS.values()]
    assert len(set(modules)) == len(modules)


def test_a_format_with_schema_ids_keeps_its_schemas_in_files_of_its_own() -> None:
    suffixes = {name: each.suffix for name, each in FORMATS.items()}
    assert {name for name, suffix in suffixes.items() if suffix} == {name for name, each in TRAITS.items() if each.kind}
    kept = [suffix for suffix in suffixes.values() if suffix]
    assert len(set(kept)) == len(kept)
