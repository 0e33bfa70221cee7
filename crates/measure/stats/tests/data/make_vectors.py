"""Makes vectors.json: the results of scipy and numpy for fixed data, for tests/it/vectors.rs.

Run once by hand (pip install numpy scipy): python make_vectors.py > vectors.json
"""

import json
import math

import numpy
import scipy
from scipy import stats

random = numpy.random.default_rng(20240501)


def integer_latencies(n):
    return [int(x) for x in numpy.round(4000 * numpy.exp(0.2 * random.standard_normal(n)))]


def samples():
    for n in (1, 2, 7, 100, 1000, 5000):
        values = integer_latencies(n)
        percentiles = (1, 10, 25, 50, 75, 90, 99, 100)
        yield {
            "values": values,
            "mean": float(numpy.mean(values)),
            "stddev": float(numpy.std(values, ddof=1)) if n > 1 else None,
            "median": float(numpy.median(values)),
            "mad": float(stats.median_abs_deviation(values)),
            "quantiles": [
                [p, float(numpy.percentile(values, p, method="inverted_cdf"))] for p in percentiles
            ],
        }


def mann_whitney():
    for n_a, n_b, shift, digits in [
        (5, 5, 0, 6), (5, 5, 300, 6), (7, 4, 500, 6), (10, 10, 250, 6), (12, 20, 100, 6),
        (8, 8, 100, -2), (10, 10, 300, -2), (40, 50, 150, 6), (60, 60, 100, -2),
    ]:
        a = [float(x) for x in numpy.round(random.normal(4000, 400, n_a), digits)]
        b = [float(x) for x in numpy.round(random.normal(4000 + shift, 400, n_b), digits)]
        ties = len(set(a + b)) < n_a + n_b
        asymptotic = stats.mannwhitneyu(b, a, method="asymptotic", use_continuity=True)
        exact = None if ties else float(stats.mannwhitneyu(b, a, method="exact").pvalue)
        yield {
            "a": a, "b": b, "u": float(asymptotic.statistic),
            "asymptotic": float(asymptotic.pvalue), "exact": exact,
        }


def fisher():
    for table in ([[3, 1], [1, 3]], [[6, 4], [4, 6]], [[10, 0], [0, 10]], [[5, 0], [0, 5]],
                  [[9, 1], [4, 6]], [[12, 30], [25, 8]], [[0, 7], [0, 3]], [[150, 50], [120, 80]]):
        yield {"table": table, "p": float(stats.fisher_exact(table)[1])}


def kendall():
    for n, slope, digits in [(5, 0, 6), (8, 20, 6), (10, 0, 6), (12, 60, 6), (30, 5, 6),
                             (20, 10, -2), (40, 3, -2), (60, 2, 6)]:
        values = random.normal(4000, 200, n) + slope * numpy.arange(n)
        values = [float(x) for x in numpy.round(values, digits)]
        ties = len(set(values)) < n
        score = sum(
            numpy.sign(values[j] - values[i]) for i in range(n) for j in range(i + 1, n)
        )
        groups = numpy.unique(values, return_counts=True)[1]
        variance = (n * (n - 1) * (2 * n + 5) - sum(t * (t - 1) * (2 * t + 5) for t in groups)) / 18
        z = max(abs(score) - 1, 0) / math.sqrt(variance)
        exact = stats.kendalltau(range(n), values, method="exact").pvalue if not ties else None
        yield {
            "values": values, "score": float(score), "variance": float(variance),
            "asymptotic": float(2 * stats.norm.sf(z)),
            "exact": None if exact is None else float(exact),
            "slope": float(stats.theilslopes(values)[0]),
        }


def interval_ranks():
    """Ranks l, u with P(x_l <= quantile <= x_u) >= 95 %; null where they fall outside 1..n."""
    for n in (1, 5, 6, 10, 39, 100, 1000, 10_000, 300_000, 1_000_000):
        for p in (1, 25, 50, 90, 99, 99.9, 99.99, 99.999):
            low = int(stats.binom.ppf(0.025, n, p / 100))
            high = int(stats.binom.ppf(0.975, n, p / 100)) + 1
            ranks = [low, high] if low >= 1 and high <= n else None
            yield {"n": n, "percentile": p, "ranks": ranks}


print(json.dumps({
    "made_with": f"numpy {numpy.__version__}, scipy {scipy.__version__}",
    "samples": list(samples()),
    "mann_whitney": list(mann_whitney()),
    "fisher": list(fisher()),
    "kendall": list(kendall()),
    "interval_ranks": list(interval_ranks()),
}))
