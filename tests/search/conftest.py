from __future__ import annotations

import pytest
from small import make_profile, make_workload

from has.core.profile import Profile
from has.core.workload import Workload


@pytest.fixture(scope="session")
def profile() -> Profile:
    return make_profile()


@pytest.fixture(scope="session")
def workload() -> Workload:
    return make_workload()
