/* The memory of one rank that its peers may write: the destination of each message of this epoch and the next.
 *
 * The upper 16 bits of a virtual address, the epoch, select a table. The buffer of a message is allocated when its
 * first byte arrives, and released by the rank after its use.
 */
#ifndef HEDDLE_MEMORY_H
#define HEDDLE_MEMORY_H

#include "system.h"

struct region {
	u64 va;
	u32 bytes, imm; /* imm: the immediate in the last packet of each part */
	u32 parts;	/* number of missing parts */
	u8 *data;
};

struct table {
	u32 count, room;
	u32 epoch;	/* 16 bits */
	u32 generation; /* changes with each new content, so that no packet is written to an old buffer */
	struct region *regions; /* by address */
};

/* Free buffers, all of one size; buffers of other sizes are returned to the system. */
struct store {
	u8 **free;
	u32 count, room, bytes;
};

struct memory {
	struct table tables[2]; /* by the lowest bit of their epoch */
	struct store store;
	u32 rkey;
};

static inline u8 *get_buffer(struct store *s, u32 bytes)
{
	if (s->count && bytes == s->bytes)
		return s->free[--s->count];
	return malloc(bytes ? bytes : 1);
}

static inline void free_buffer(struct store *s, u8 *data, u32 bytes)
{
	u8 **more;

	if (!data)
		return;
	if (bytes > s->bytes) { /* keep whole messages: they are the most frequent, and the longest */
		while (s->count)
			free(s->free[--s->count]);
		s->bytes = bytes;
	}
	if (bytes == s->bytes && s->count == s->room) {
		more = realloc(s->free, 2 * (s->room + 8) * sizeof(*more));
		if (more) {
			s->free = more;
			s->room = 2 * (s->room + 8);
		}
	}
	if (bytes == s->bytes && s->count < s->room)
		s->free[s->count++] = data;
	else
		free(data);
}

static inline void clear_table(struct memory *m, struct table *t)
{
	for (u32 i = 0; i < t->count; i++)
		free_buffer(&m->store, t->regions[i].data, t->regions[i].bytes);
	t->count = 0;
	t->generation++;
}

/* The region that contains [va, va + bytes), or NULL. */
static inline struct region *find_region(struct table *t, u64 va, u32 bytes)
{
	u32 low = 0, high = t->count;
	struct region *r;

	if (!t->count || t->epoch != va >> EPOCH_SHIFT)
		return NULL;
	while (high - low > 1) {
		u32 mid = (low + high) / 2;

		if (t->regions[mid].va <= va)
			low = mid;
		else
			high = mid;
	}
	r = &t->regions[low];
	return r->va <= va && va - r->va <= r->bytes && bytes <= r->bytes - (va - r->va) ? r : NULL;
}

#endif
