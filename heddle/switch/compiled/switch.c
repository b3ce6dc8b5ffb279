/* One object for the compiled code of switches: pfcloop.c, and the reading of counters by row. */
#include "switch.h"

#define WORD(f, row) (*(volatile i64 *)((f).base + (u64)(row) * (f).stride))

/* As series.py: copy the words of each row in which a packet arrived, waits or was dropped, or a pause arrived or is
 * in force since `since_ns`, or of every row; reset the peaks of these rows to 0. Return their number. which, out: room
 * for all rows.
 */
API u32 hd_rows_read(struct reader *r, i64 since_ns, int every, u32 *which, i64 *out)
{
	u32 row, word, found = 0;
	i64 dropped;

	for (row = 0; row < r->rows; row++) {
		dropped = WORD(r->drop_bytes, row); /* before the words: a later drop is read next time */
		if (!every && !r->full[row] && !WORD(r->peak, row) && !WORD(r->depth, row) && !WORD(r->occupancy, row) &&
		    !WORD(r->occupancy_peak, row) && !WORD(r->closed_since_ns, row) && WORD(r->last_ns, row) < since_ns &&
		    dropped == r->dropped[row])
			continue;
		r->dropped[row] = dropped;
		for (word = 0; word < r->words; word++)
			*out++ = WORD(r->taken[word], row);
		WORD(r->peak, row) = 0;
		WORD(r->occupancy_peak, row) = 0;
		r->full[row] = WORD(r->depth, row) || WORD(r->occupancy, row);
		which[found++] = row;
	}
	return found;
}

API u32 hd_switch_version(void) { return SWITCH_VERSION; }

/* Sizes of the structs, which Python compares with its own. */
API void hd_switch_sizes(u32 *out)
{
	out[0] = sizeof(struct core);
	out[1] = sizeof(struct port);
	out[2] = sizeof(struct gate);
	out[3] = sizeof(struct work);
	out[4] = sizeof(struct event);
	out[5] = sizeof(struct reader);
}
