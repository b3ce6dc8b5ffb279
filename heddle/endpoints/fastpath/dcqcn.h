/* DCQCN for the compiled loop. The reference is congestion/dcqcn.py and ratecontrol.py: the
 * same numbers for the same events. Floating point is as in Python: 64 bits, no contraction (-ffp-contract=off).
 */
#ifndef HEDDLE_DCQCN_H
#define HEDDLE_DCQCN_H

#include "wire.h"


/* Emulated nanoseconds and bit/s. on: 0 for no congestion control. steps: of each record. cnp_tos: of CNPs.
 * frame_bits: of a full frame. coalesce: the queue pairs of a NIC to one address share a shaper. */
struct dcqcn_rule {
	double keep, first_alpha, first_bps, least_factor, min_bps, cut_divisor, ai_bps, hai_bps, start_bps, growth;
	i64 alpha_ns, cut_ns, time_ns, gap_ns, frame_bits;
	u64 byte_reset;
	u32 threshold, steps;
	u8 on, clamp, clamp_after_time, cnp_tos, coalesce;
};

/* A reaction point, the turns of the queue pairs that share it, and the record of its rate. */
struct shaper {
	double alpha, rate, target, line;
	i64 alpha_at, cut_at, last_cut, time_at;
	u64 bytes, byte_events, time_events;
	i64 start, done, tail; /* time and turn of the frame that left last; the next free turn, in bits */
	u32 users, count;
	u8 seen;
	i64 resolution;
	i64 *times; /* rule.steps + 1 of both */
	double *rates;
};

/* The pacing of one sending queue pair. */
struct pace {
	struct shaper *shaper;
	i64 turn, at, due; /* its turn, -1 for none; when it begins; when to look again */
	i64 since; /* when it began to wait */
	i64 *held; /* the transport's timer, which stops while packets wait */
	u64 cnps;
	u8 waits, owner; /* owner: it was the first of its shaper */
};

/* The notification point of one receiving queue pair. flow: of its CNPs. */
struct notify {
	struct flow flow;
	i64 next, deadline;
	u64 cnps;
	u8 due;
};

static inline double power(double base, i64 exponent)
{
	double result = 1.0;

	for (; exponent; exponent >>= 1, base *= base)
		if (exponent & 1)
			result *= base;
	return result;
}

static inline i64 least(i64 a, i64 b) { return a < b ? a : b; }

static inline void start_shaper(const struct dcqcn_rule *r, struct shaper *p, double line)
{
	p->rate = p->target = r->start_bps > 0 && r->start_bps < line ? r->start_bps : line;
	p->line = line;
	p->alpha_at = p->cut_at = p->time_at = FAR_NS;
	p->last_cut = p->start = -FAR_NS;
	p->resolution = FINEST_NS;
}

static inline void increase(const struct dcqcn_rule *r, struct shaper *p)
{
	i64 timer = (i64)p->time_events, bytes = r->byte_reset ? (i64)p->byte_events : timer - 1;
	double rate;

	if (least(timer, bytes) > (i64)r->threshold)
		p->target += r->hai_bps;
	else if ((timer > bytes ? timer : bytes) > (i64)r->threshold)
		p->target += r->ai_bps;
	if (p->target > p->line)
		p->target = p->line;
	rate = (p->rate + p->target) / 2;
	p->rate = p->target - rate < 1.0 ? p->target : rate;
}

static inline void cut(const struct dcqcn_rule *r, struct shaper *p, i64 at)
{
	double factor = 1.0 - p->alpha / r->cut_divisor, rate;

	if (p->time_at == FAR_NS || r->clamp || p->byte_events || (p->time_events && r->clamp_after_time))
		p->target = p->rate;
	rate = p->rate * (factor > r->least_factor ? factor : r->least_factor);
	p->rate = rate > r->min_bps ? rate : r->min_bps;
	p->bytes = p->byte_events = p->time_events = 0;
	p->cut_at = FAR_NS;
	p->last_cut = at;
	p->time_at = at + r->time_ns;
}

/* Apply alpha updates, cuts and timer events up to now, in order of time, in this order at equal times. */
static inline void expire_rate(const struct dcqcn_rule *r, struct shaper *p, i64 now)
{
	i64 at, updates;

	while ((at = least(least(p->alpha_at, p->cut_at), p->time_at)) <= now) {
		if (at == p->alpha_at && p->seen) {
			p->alpha = r->keep * p->alpha + (1.0 - r->keep);
			p->seen = 0;
			p->alpha_at += r->alpha_ns;
		} else if (at == p->alpha_at) {
			updates = (least(least(now, p->cut_at), p->time_at) - at) / r->alpha_ns + 1;
			p->alpha *= power(r->keep, updates);
			p->alpha_at += updates * r->alpha_ns;
		} else if (at == p->cut_at) {
			cut(r, p, at);
		} else {
			p->time_events++;
			p->time_at += r->time_ns;
			if (p->alpha_at == FAR_NS && r->growth > 1.0)
				p->rate = p->target = p->rate * r->growth < p->line ? p->rate * r->growth : p->line;
			else
				increase(r, p);
		}
	}
}

static inline void take_cnp(const struct dcqcn_rule *r, struct shaper *p, i64 now)
{
	expire_rate(r, p, now);
	if (p->alpha_at == FAR_NS) {
		p->alpha = r->first_alpha;
		p->alpha_at = now + r->alpha_ns;
		if (r->first_bps > 0)
			p->rate = p->target = p->line < r->first_bps ? p->line : r->first_bps;
	} else {
		p->seen = 1;
	}
	if (p->cut_at == FAR_NS) {
		p->cut_at = now > p->last_cut + r->cut_ns ? now : p->last_cut + r->cut_ns;
		expire_rate(r, p, now);
	}
}

static inline void count_bytes(const struct dcqcn_rule *r, struct shaper *p, u64 size, i64 now)
{
	expire_rate(r, p, now);
	if (p->time_at == FAR_NS && p->rate < p->line) /* the first packet */
		p->time_at = now + r->time_ns;
	if (p->time_at == FAR_NS || !r->byte_reset)
		return;
	p->bytes += size;
	while (p->bytes >= r->byte_reset) {
		p->bytes -= r->byte_reset;
		p->byte_events++;
		increase(r, p);
	}
}

static inline void merge_steps(struct shaper *p)
{
	u32 kept = 0;

	for (u32 i = 0; i < p->count; i++) {
		if (!kept || p->times[i] - p->times[kept - 1] >= p->resolution)
			p->times[kept++] = p->times[i];
		p->rates[kept - 1] = p->rates[i];
	}
	p->count = kept;
}

static inline void record_rate(const struct dcqcn_rule *r, struct shaper *p, i64 now)
{
	if (p->count && p->rates[p->count - 1] == p->rate)
		return;
	if (p->count && now - p->times[p->count - 1] < p->resolution) {
		p->rates[p->count - 1] = p->rate;
		return;
	}
	p->times[p->count] = now;
	p->rates[p->count++] = p->rate;
	while (p->count > r->steps) {
		p->resolution *= 2;
		merge_steps(p);
	}
}

static inline int is_paced(const struct shaper *p) { return p->rate < p->line; }

/* Compute the time of its turn from the rate that holds now. */
static inline void schedule(struct pace *p, i64 now)
{
	struct shaper *s = p->shaper;
	i64 timer = is_paced(s) ? s->time_at : FAR_NS;
	int waits = 0;

	if (!is_paced(s))
		p->turn = -1;
	if (p->turn >= 0) {
		p->at = s->start + (i64)((double)((p->turn - s->done) * 1000000000) / s->rate);
		p->due = least(p->at, least(timer, s->cut_at));
		waits = p->at > now;
	}
	if (waits && !p->waits)
		p->since = now;
	else if (p->waits && !waits && *p->held != INT64_MAX)
		*p->held += now - p->since;
	p->waits = (u8)waits;
}

/* Take a turn if it has none; whether it has begun. */
static inline int has_turn(const struct dcqcn_rule *r, struct pace *p, i64 now)
{
	if (p->turn < 0) {
		p->turn = p->shaper->tail;
		p->shaper->tail += r->frame_bits;
	}
	schedule(p, now);
	return !p->waits;
}

/* The rate may have changed. */
static inline void rate_changed(const struct dcqcn_rule *r, struct pace *p, i64 now)
{
	if (p->waits)
		schedule(p, now);
	record_rate(r, p->shaper, now);
}

/* Frames of `size` bytes in all have left. more: there are others. */
static inline void frames_left(const struct dcqcn_rule *r, struct pace *p, u64 size, int more, i64 now)
{
	struct shaper *s = p->shaper;

	count_bytes(r, s, size, now);
	if (p->turn >= 0) {
		s->tail += (i64)(8 * size) - r->frame_bits;
		if (p->turn >= s->done) {
			s->done = p->turn;
			s->start = p->at > now - CATCH_UP_NS ? p->at : now - CATCH_UP_NS;
		}
		p->turn = -1;
		if (is_paced(s) && more)
			has_turn(r, p, now);
	}
	record_rate(r, s, now);
}

static inline void cnp_due(const struct dcqcn_rule *r, struct notify *f, i64 now)
{
	f->due = 1;
	f->deadline = FAR_NS;
	f->next = now + r->gap_ns;
}

static inline void marked(const struct dcqcn_rule *r, struct notify *f, i64 now)
{
	if (f->due || f->deadline != FAR_NS)
		return;
	if (now >= f->next)
		cnp_due(r, f, now);
	else
		f->deadline = f->next;
}

#endif
