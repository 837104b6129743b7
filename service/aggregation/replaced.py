"""The places in a batch of readings that were sent again. Their copies count: service/rejects/two_places.py."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa

from service.admission.arrays import NO_INDEX
from service.admission.expansion import INDEX
from state.columns import Bools


@dataclass(frozen=True, slots=True)
class Replaced:
    """By (number of the partition, offset, number of the element or NO_INDEX for the record): whether views without windows count
    the reading at this place."""

    places: Mapping[tuple[int, int, int], bool]

    @classmethod
    def of(cls, places: Iterable[tuple[int, int, int, bool]]) -> Self:
        """Return the places of BatchContext.replaced: partition, offset, element, whether it is counted."""
        return cls({(code, offset, index): is_counted for code, offset, index, is_counted in places})

    def find(self, readings: pa.Table) -> tuple[Bools, Bools]:
        """Return which rows of `readings.admit` are at one of the places, and which of them views without windows count there."""
        offsets = np.array([offset for _, offset, _ in self.places], np.int64)
        are_found, are_counted = (np.zeros(readings.num_rows, np.bool_) for _ in range(2))
        rows = np.flatnonzero(np.isin(readings["offset"].to_numpy(), offsets))
        if rows.size:
            chosen = readings.take(pa.array(rows))
            index = chosen[INDEX].fill_null(NO_INDEX) if INDEX in chosen.column_names else [NO_INDEX] * len(rows)
            for row, code, offset, number in zip(
                rows.tolist(),
                *(np.asarray(each).tolist() for each in (chosen["from_partition"], chosen["offset"], index)),
                strict=True,
            ):
                counted = self.places.get((code, offset, number), self.places.get((code, offset, NO_INDEX)))
                are_found[row], are_counted[row] = counted is not None, bool(counted)
        return are_found, are_counted
