"""Sets of whole numbers as sorted half-open ranges: bytes of messages, and packet numbers."""

from bisect import bisect_left, bisect_right


class Intervals:
    def __init__(self):
        self.lows, self.highs = [], []

    def add(self, low, high):
        """Adds [low, high)."""
        if low >= high:
            return
        first, last = bisect_left(self.highs, low), bisect_right(self.lows, high)
        if first < last:
            low, high = min(low, self.lows[first]), max(high, self.highs[last - 1])
        self.lows[first:last], self.highs[first:last] = [low], [high]

    def __contains__(self, number):
        place = bisect_right(self.lows, number) - 1
        return place >= 0 and number < self.highs[place]

    def missing(self, low, high):
        """What of [low, high) is not here, as a list of ranges."""
        gaps, place = [], bisect_right(self.highs, low)
        while low < high:
            start = self.lows[place] if place < len(self.lows) else high
            if low < start:
                gaps.append((low, min(start, high)))
            low = self.highs[place] if place < len(self.highs) else high
            place += 1
        return gaps

    def forget_below(self, low):
        """Everything below `low` counts as here."""
        self.add(0, low)

    def newest(self, most, least=1):
        """The highest ranges, downwards, as (lowest, highest), not below `least`."""
        pairs = zip(reversed(self.lows[-most:]), reversed(self.highs[-most:]))
        return [(max(low, least), high - 1) for low, high in pairs if high > least]
