/* The memory of rows.c. Python allocates and fills all of it: layouts.py has the same layouts. */
#ifndef HEDDLE_ROWS_H
#define HEDDLE_ROWS_H

#include "field.h"

struct reader {
	u32 rows, words;
	struct field *taken; /* the words to copy */
	u8 *full;	     /* by row: it was not empty at the last reading */
	struct field depth, peak, occupancy, occupancy_peak, closed_since_ns, last_ns;
};

#endif
