"""Search spaces (`search_spaces/*.yaml`)."""

from __future__ import annotations

from pathlib import Path

from has.core.space import SearchSpace
from has.files.atomic import write_atomic
from has.files.kinds import refuse_other
from has.files.plain import prune, short
from has.files.shipped import named
from has.files.validate import validate
from has.files.yaml import dump_yaml, load_yaml


def load_space(path: str | Path) -> SearchSpace:
    """The space in a file, or the shipped one of that name. Raises InputError: file, field, value, what is allowed, the mend."""
    file = named(path, "search_spaces")
    fields = load_yaml(file)
    refuse_other(fields, "search space", file)
    return validate(SearchSpace, fields, str(file))


def save_space(space: SearchSpace, path: str | Path) -> None:
    """Write it; atomic."""
    fields = space.model_dump(mode="python")
    # Left out it means the profile's, not the default.
    fields["tensor_parallel"] = space.tensor_parallel.model_dump(mode="python", exclude_unset=True)
    write_atomic(path, dump_yaml(short(prune(fields))))
