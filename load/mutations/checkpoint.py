"""Mutations of what happens to a checkpoint between two terms: another number of buckets, another release."""

from load.mutations.mutation import Edit, Mutation

_RELEASES = "tests/unit/test_releases.py::"

MUTATIONS = (
    Mutation(
        "layout-unnamed",
        "bytes of another layout are read as if they were of this one",
        "a state of another release is guessed at",
        ("P7",),
        (Edit("state/codec.py", "    if data[4] not in VERSIONS:", "    if False:"),),
        (
            _RELEASES + "test_the_layout_of_0_1_0_is_refused_by_name",
            _RELEASES + "test_every_layout_has_magic_and_version_where_every_version_looks_for_them",
        ),
    ),
)
