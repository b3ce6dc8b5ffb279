/* The loop of the PFC agent: events of the queue programs, pause frames, gates, and the deadlines of both.
 *
 * The reference is Python, in ../pfc: agent.py (_hear, _open, _expire, Pauses; Watchdog.closed, opened), which does the
 * same to the same memory. Python calls hd_pfc_wait, which returns when there is something that only Python does: a
 * deadline of another kind, or a readable descriptor. Nothing is allocated here.
 */
#include "switch.h"

/* A number of a map's row. Programs and the keeper write these, too. */
#define U64(field, row) (*(volatile u64 *)(c->field.base + (u64)(row) * c->field.stride))
#define U32(field, row) ((volatile u32 *)(c->field.base + (u64)(row) * c->field.stride))

/* Deadlines: a binary heap of keys (kind * rows + row), each at most once. */

static int earlier(const struct core *c, u32 a, u32 b) { return c->when[a] < c->when[b]; }

static void place(struct core *c, u32 at, u32 key)
{
	c->heap[at] = key;
	c->position[key] = at + 1;
}

static void up(struct core *c, u32 at)
{
	u32 key = c->heap[at];

	for (; at && earlier(c, key, c->heap[(at - 1) / 2]); at = (at - 1) / 2)
		place(c, at, c->heap[(at - 1) / 2]);
	place(c, at, key);
}

static void down(struct core *c, u32 at)
{
	u32 key = c->heap[at], child;

	for (; (child = 2 * at + 1) < c->pending; at = child) {
		if (child + 1 < c->pending && earlier(c, c->heap[child + 1], c->heap[child]))
			child++;
		if (!earlier(c, c->heap[child], key))
			break;
		place(c, at, c->heap[child]);
	}
	place(c, at, key);
}

static void cancel(struct core *c, u32 key)
{
	u32 at = c->position[key], last;

	if (!at)
		return;
	at--;
	c->position[key] = 0;
	last = c->heap[--c->pending];
	if (last == key)
		return;
	place(c, at, last);
	up(c, at);
	down(c, c->position[last] - 1);
}

static void push(struct core *c, u32 kind, u32 row, i64 when)
{
	u32 key = kind * c->rows + row;

	cancel(c, key);
	c->when[key] = when;
	place(c, c->pending++, key);
	up(c, c->pending - 1);
}

static void arm(struct core *c)
{
	struct itimerspec at = { { 0, 0 }, { 0, 0 } };
	i64 first;

	if (!c->pending)
		return;
	first = c->when[c->heap[0]];
	if (first < 1)
		first = 1; /* 0 would disarm the timer */
	if (c->armed && c->armed <= first)
		return;
	at.value.sec = first / 1000000000;
	at.value.nsec = first % 1000000000;
	timerfd_settime(c->timer, TFD_TIMER_ABSTIME, &at, NULL);
	c->armed = first;
}

/* Pauses that this lab's ports request: agent.py. */

static void send_frame(struct core *c, u32 row, u32 quanta)
{
	struct port *p = &c->ports[row / CLASSES];
	u8 frame[FRAME_BYTES] = { 0x01, 0x80, 0xC2, 0, 0, 1 };

	if (p->control < 0) /* its namespace is gone */
		return;
	memcpy(frame + 6, p->mac, 6);
	put16(frame + 12, 0x8808);
	put16(frame + 14, 0x0101);
	put16(frame + 16, 1u << row % CLASSES);
	put16(frame + 18 + 2 * (row % CLASSES), quanta);
	if (sendto(p->control, frame, FRAME_BYTES, 0, p->address, ADDRESS_BYTES) >= 0)
		U64(pfc_sent, row)++;
}

static void ask(struct core *c, u32 row, i64 now)
{
	i64 half = (i64)(c->quanta[row] * c->ports[row / CLASSES].quantum_ns) / 2;

	send_frame(c, row, c->quanta[row]);
	c->asked[row] = 1;
	push(c, REFRESH, row, now + (half > LEAST_NS ? half : LEAST_NS));
}

static void settle(struct core *c, u32 row, i64 now)
{
	if (*U32(state, row) == PAUSED && c->pfc[row]) {
		if (!c->asked[row])
			ask(c, row, now);
	} else if (c->asked[row]) {
		c->asked[row] = 0;
		cancel(c, REFRESH * c->rows + row);
		send_frame(c, row, 0);
	}
}

static void refresh(struct core *c, u32 row, i64 now)
{
	c->asked[row] = 0;
	if (*U32(state, row) == PAUSED && c->pfc[row])
		ask(c, row, now);
	else
		send_frame(c, row, 0);
}

/* Gates that pause frames close: agent.py. */

static void change(struct core *c, struct gate *g, const u8 *message, u32 size)
{
	if (send(g->netlink, message, size, 0) < 0)
		c->refused++;
}

static void watch(struct core *c, u32 row, i64 until)
{
	c->checked[row] = until;
	push(c, EXPIRE, row, until);
}

static u32 reaction_bin(i64 took)
{
	u32 bin = 0;

	for (took = took > 0 ? took / REACTION_STEP_NS : 0; took && bin < REACTION_BINS - 1; took >>= 1)
		bin++;
	return bin;
}

static void count_reaction(struct core *c, u32 row, i64 arrived)
{
	i64 left = (i64)U64(last_out_ns, row), shut = c->shut[row];
	i64 took = (left > shut ? left : shut) - arrived;

	U64(reactions, row)++;
	U64(reaction_last_ns, row) = (u64)took;
	U64(reaction_sum_ns, row) += (u64)took;
	if (took > (i64)U64(reaction_max_ns, row))
		U64(reaction_max_ns, row) = (u64)took;
	U32(histogram, row)[reaction_bin(took)]++;
}

static void open_row(struct core *c, u32 row, i64 now)
{
	struct gate *g = &c->gates[row];
	i64 since;

	c->checked[row] = 0;
	cancel(c, EXPIRE * c->rows + row);
	if (c->arrived[row])
		count_reaction(c, row, c->arrived[row]);
	c->arrived[row] = 0;
	if (g->netlink >= 0) { /* else its node is gone */
		change(c, g, g->opening, g->opening_bytes);
		sendto(g->kicker, c->kick, c->kick_bytes, 0, g->address, ADDRESS_BYTES); /* refused on purpose: gates.py */
	}
	since = (i64)U64(closed_since_ns, row);
	if (since && now > since)
		U64(paused_ns, row) += (u64)(now - since);
	/* After the kernel has opened the gate: if this process is killed in between, the gate is recorded as closed. */
	U64(closed_since_ns, row) = 0;
	U64(until_ns, row) = 0;
	U64(since_ns, row) = 0; /* the programs end a pause only on Xon */
	if (c->waiting[row] >= 0) {
		c->waiting[row] = -1;
		cancel(c, DETECT * c->rows + row);
	}
}

static void hear(struct core *c, u32 row, u32 quanta, i64 heard)
{
	struct gate *g = &c->gates[row];
	i64 until, now;
	int waits;

	if (g->netlink < 0 || !c->pfc[row])
		return;
	if (!quanta) {
		if (U64(until_ns, row))
			open_row(c, row, clock_ns());
		return;
	}
	c->heard[row] = heard;
	if (c->storming[row])
		return;
	until = heard + (i64)(quanta * c->ports[row / CLASSES].quantum_ns);
	if (U64(until_ns, row)) { /* already closed: the newest frame sets the end */
		U64(until_ns, row) = (u64)until;
		if (until < c->checked[row])
			watch(c, row, until);
		return;
	}
	now = clock_ns();
	if (until <= now) /* the pause was over before this process read the frame */
		return;
	/* Before the kernel closes the gate: if this process is killed in between, the gate is recorded as closed. */
	U64(until_ns, row) = (u64)until;
	U64(closed_since_ns, row) = (u64)now;
	change(c, g, g->closing, g->closing_bytes);
	c->arrived[row] = heard;
	c->shut[row] = clock_ns();
	watch(c, row, until);
	if (c->detect_ns[row]) { /* agent.py, closed() */
		waits = U64(depth, row) > 0;
		c->waiting[row] = waits ? now : 0;
		push(c, DETECT, row, now + (waits ? c->detect_ns[row] : c->detect_ns[row] / LOOKS));
	}
}

static void expire(struct core *c, u32 row, i64 now)
{
	i64 until = (i64)U64(until_ns, row);

	if (until > now) /* the pause was extended meanwhile */
		watch(c, row, until);
	else if (until)
		open_row(c, row, now);
}

/* libbpf calls this for each event. */
API int hd_pfc_event(struct core *c, const struct event *e, size_t size)
{
	u32 first = e->port * CLASSES, vector, class;

	if (size < sizeof(*e) || first > c->rows - CLASSES)
		return 0;
	c->events++;
	if (e->kind == EVENT_PFC) {
		for (vector = e->class, class = 0; vector; vector >>= 1, class++)
			if (vector & 1)
				hear(c, first + class, e->quanta[class], (i64)e->ns);
	} else if (e->class < CLASSES) {
		settle(c, first + e->class, clock_ns());
	}
	return 0;
}

static int take_events(struct core *c)
{
	u64 before;
	int round;

	/* A frame that is sent in one round is an event of its receiver in the next: one wake-up serves both. */
	for (round = 0; round < ROUNDS; round++) {
		before = c->events;
		if (c->consume(c->ring) < 0)
			return -1;
		if (c->events == before)
			break;
	}
	return 0;
}

/* Work until there is something for Python; return how many works are in `out`. 0: a signal came. -1: the ring failed,
 * -2: epoll failed.
 */
API int hd_pfc_wait(struct core *c, struct work *out, int room)
{
	struct epoll_event ready[READY];
	int count = 0, got, i;
	u32 key, kind, row;
	u64 expiries;
	i64 now;

	for (;;) {
		now = clock_ns();
		*c->heartbeat = (u64)now;
		while (c->pending && count < room && c->when[c->heap[0]] <= now) {
			key = c->heap[0];
			kind = key / c->rows;
			row = key % c->rows;
			cancel(c, key);
			if (kind == REFRESH)
				refresh(c, row, now);
			else if (kind == EXPIRE)
				expire(c, row, now);
			else
				out[count++] = (struct work){ -1, kind, row };
		}
		if (count)
			return count;
		arm(c);
		got = epoll_wait(c->epoll, ready, READY < room ? READY : room, -1);
		if (got < 0)
			return last_error() == EINTR ? 0 : -2;
		for (i = 0; i < got; i++) {
			if ((int)ready[i].data == c->events_fd) {
				if (take_events(c))
					return -1;
			} else if ((int)ready[i].data == c->timer) {
				c->armed = 0;
				if (read(c->timer, &expiries, sizeof(expiries)) < 0)
					continue; /* it was set to another time meanwhile */
			} else {
				out[count++] = (struct work){ (int)ready[i].data, 0, 0 };
			}
		}
		if (count)
			return count;
	}
}

API void hd_pfc_push(struct core *c, u32 kind, u32 row, i64 when) { push(c, kind, row, when); }
API void hd_pfc_cancel(struct core *c, u32 kind, u32 row) { cancel(c, kind * c->rows + row); }
