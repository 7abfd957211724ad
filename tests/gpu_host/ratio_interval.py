# SPDX-License-Identifier: Apache-2.0
"""What the ratios of two sides' figures, taken in turns, say of what lies behind them."""

import statistics

RESAMPLES = 2000


def interval(rounds, chance):
    """The median of the ratios in `rounds` (a list of lists), and its 95 % interval. Rounds are resampled, and the ratios within them,
    because processes differ from one another more than the samples of one do; `chance` is a random.Random."""
    estimate = statistics.median([ratio for each in rounds for ratio in each])
    drawn = []
    for _ in range(RESAMPLES):
        sample = []
        for _ in rounds:
            each = rounds[chance.randrange(len(rounds))]
            sample += [each[chance.randrange(len(each))] for _ in each]
        drawn.append(statistics.median(sample))
    drawn.sort()
    return estimate, drawn[int(0.025 * RESAMPLES)], drawn[int(0.975 * RESAMPLES) - 1]
