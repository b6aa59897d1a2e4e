import unittest

import numpy as np

from modelless_generator.calibrate import BINS, Seen, divergence, least_lost, percentile


def seen(values):
    one = Seen()
    one.extent(values)
    one.count(values)
    return one


class Ranges(unittest.TestCase):
    def setUp(self):
        self.rng = np.random.default_rng(0)

    def test_all_that_was_seen_is_kept_by_minmax(self):
        values = np.append(self.rng.standard_normal(10_000), 40.0).astype(np.float32)
        low, high = seen(values).range("minmax")
        self.assertAlmostEqual(high, 40.0)
        self.assertAlmostEqual(low, float(values.min()))

    def test_one_outlier_is_cut_off_by_percentile_and_by_entropy(self):
        values = np.append(self.rng.standard_normal(100_000), 40.0).astype(np.float32)
        for method in ("percentile", "entropy"):
            low, high = seen(values).range(method)
            self.assertLess(high, 8.0, method)
            self.assertGreater(high, 2.5, method)
            self.assertLess(low, -2.5, method)

    def test_entropy_keeps_what_is_spread_evenly(self):
        values = self.rng.uniform(0.0, 5.0, 100_000).astype(np.float32)
        low, high = seen(values).range("entropy")
        self.assertEqual(low, 0.0)
        self.assertGreater(high, 4.7)

    def test_entropy_loses_less_than_minmax_where_tails_are_long(self):
        """By its own measure, and by what rounding really costs most of the values."""
        values = np.abs(self.rng.laplace(0.0, 1.0, 200_000)).astype(np.float32)
        values = np.append(values, [60.0]).astype(np.float32)
        one = seen(values)
        kept = least_lost(one.counts, 256)
        self.assertLess(divergence(one.counts, kept, 256), divergence(one.counts, BINS, 256))
        typical = values[values < np.quantile(values, 0.999)]
        error = {}
        for method in ("minmax", "entropy"):
            step = one.range(method)[1] / 255.0
            error[method] = np.mean((np.minimum(np.round(typical / step), 255) * step - typical) ** 2)
        self.assertLess(error["entropy"], error["minmax"])

    def test_zeros_do_not_count(self):
        values = np.maximum(self.rng.standard_normal(10_000), 0.0).astype(np.float32)
        with_more = np.append(values, np.zeros(1_000_000, np.float32))
        self.assertEqual(seen(values).range("entropy"), seen(with_more).range("entropy"))

    def test_a_constant_or_dead_activation_has_a_range(self):
        for values in (np.zeros(100, np.float32), np.full(100, 3.0, np.float32), np.full(100, -3.0, np.float32)):
            for method in ("minmax", "percentile", "entropy"):
                low, high = seen(values).range(method)
                self.assertLessEqual(low, 0.0)
                self.assertGreaterEqual(high, 0.0)
                self.assertTrue(low <= values[0] * 0.99 <= high or values[0] == 0.0, (method, low, high))

    def test_percentile_counts_from_the_smallest(self):
        counts = np.zeros(BINS, np.int64)
        counts[:10] = 1_000
        counts[-1] = 1
        self.assertEqual(percentile(counts, 99.9), 10)
        self.assertEqual(percentile(counts, 100.0), BINS)

    def test_what_is_seen_in_parts_is_what_is_seen_at_once(self):
        values = self.rng.standard_normal(4_096).astype(np.float32)
        parts = Seen()
        for do in (Seen.extent, Seen.count):
            for part in np.split(values, 16):
                do(parts, part)
        whole = seen(values)
        self.assertEqual((parts.low, parts.high), (whole.low, whole.high))
        self.assertTrue((parts.counts == whole.counts).all())
