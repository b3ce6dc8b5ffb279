/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
 *
 * Incoming pause frames: IEEE 802.1Qbb, MAC control with opcode 0x0101 (IEEE 802.3, annex 31D).
 *
 * A MAC does not forward MAC control frames, so all are dropped here. Only complete, valid frames have an effect.
 */
#ifndef HEDDLE_PFC_H
#define HEDDLE_PFC_H
#include "accounting.h"

struct pfc_frame {
	__u16 to[3];
	__u16 from[3];
	__u16 type;
	__u16 opcode;
	__u16 vector; /* a bit for each class; the high byte is reserved */
	__u16 quanta[CLASSES]; /* of 512 bit times */
};

/* Count one class of a frame; return whether it is lossless at this port. */
INLINE int pause_class(__u32 port, __u32 number, __u32 half, __u16 quanta, __u64 now)
{
	__u32 row = port * CLASSES + number, rule_row = row * 2 + half;
	struct gate *gate = bpf_map_lookup_elem(&gates, &row);
	struct policy *rule = bpf_map_lookup_elem(&policies, &rule_row);

	if (!gate || !rule || !(rule->flags & POLICY_PFC))
		return 0;
	add(&gate->pfc_received, 1);
	gate->last_ns = now;
	if (!quanta)
		gate->since_ns = 0;
	else if (!gate->since_ns)
		gate->since_ns = now;
	return 1;
}

static __attribute__((noinline)) int mac_control(struct __sk_buff *skb)
{
	__u32 port = port_of(skb), zero = 0, i, *changes = bpf_map_lookup_elem(&active, &zero);
	struct event event = {};
	struct pfc_frame frame;

	if (!changes || bpf_skb_load_bytes(skb, 0, &frame, sizeof(frame)))
		return TC_ACT_SHOT;
	if (frame.to[0] != htons(0x0180) || frame.to[1] != htons(0xc200) || frame.to[2] != htons(0x0001) ||
	    frame.opcode != htons(OPCODE_PFC))
		return TC_ACT_SHOT;
	event.ns = bpf_ktime_get_ns();
	event.port = port;
	event.kind = EVENT_PFC;
#pragma clang loop unroll(full)
	for (i = 0; i < CLASSES; i++) {
		if (!(ntohs(frame.vector) & 1 << i) || !pause_class(port, i, *changes & 1, frame.quanta[i], event.ns))
			continue;
		event.class |= 1 << i;
		event.quanta[i] = ntohs(frame.quanta[i]);
	}
	if (event.class)
		bpf_ringbuf_output(&events, &event, sizeof(event), BPF_RB_FORCE_WAKEUP);
	return TC_ACT_SHOT;
}

#endif
