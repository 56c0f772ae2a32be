"""What the tests of this folder share."""

from tests.commands import every_resample, few_resamples  # noqa: F401  # fixtures
