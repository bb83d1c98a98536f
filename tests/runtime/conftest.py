from tests.runtime.live import pools  # noqa: F401  # a fixture
