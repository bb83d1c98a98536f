from __future__ import annotations

import pytest

from has.core.profile import Profile
from has.core.workload import Workload
from tests.search.small import make_profile, make_workload


@pytest.fixture(scope="session")
def profile() -> Profile:
    return make_profile()


@pytest.fixture(scope="session")
def workload() -> Workload:
    return make_workload()
