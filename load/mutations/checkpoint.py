"""Mutations of what happens to a checkpoint between two terms: another number of buckets, another release."""

from load.mutations.mutation import Edit, Mutation

_RESHAPE = "tests/integration/test_reshape.py::"
_RELEASES = "tests/unit/test_releases.py::"

MUTATIONS = (
    Mutation(
        "reshape-unverified",
        "a reshape does not compare what it has written with what it has read",
        "an entry that is lost on the way is lost for good",
        ("P1", "P7"),
        (Edit("service/commands/reshape.py", "        if found != whole:", "        if False:"),),
        (_RESHAPE + "test_a_state_that_comes_back_with_a_difference_is_not_used",),
    ),
    Mutation(
        "reshape-unmarked",
        "the manifest is an ordinary one while the files are replaced",
        "a switch that was interrupted is taken for one that has not begun, and the state is read in part",
        ("P1", "P7"),
        (Edit("service/checkpoint/shape.py", "    _set_manifest(files, format=manifest.SWITCHING)\n", ""),),
        (_RESHAPE + "test_a_reshape_that_is_interrupted_leaves_a_checkpoint_that_goes_on",),
    ),
    Mutation(
        "views-unmarked",
        "the manifest is the same whether or not views have names of their own in keys",
        "an older version begins such a view again under its plain name, without a word",
        ("P7",),
        (
            Edit(
                "service/checkpoint/view_versions.py",
                "return manifest.FORMAT if is_plain else manifest.VERSIONED",
                "return manifest.FORMAT",
            ),
        ),
        ("tests/unit/test_view_versions.py::test_a_manifest_names_what_an_older_version_would_not_keep",),
    ),
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
