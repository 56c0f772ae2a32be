"""Statistics of sums per image: values, chance levels, intervals, and families of tests."""
