/* RoCEv2 frames: reading, building, ICRC. The same rules as nic/frames.py, which is the reference.
 *
 * Sources: InfiniBand Architecture Specification vol. 1, annex A17; RFC 791, 768, 8200.
 */
#ifndef HEDDLE_WIRE_H
#define HEDDLE_WIRE_H

#include "system.h"

#define HEADER_ROOM 128 /* Ethernet, IPv6, UDP, BTH, RETH, immediate: 94; then padding and ICRC */
#define HEADER_BYTES(version) ((version) == 4 ? IPV4_BYTES : IPV6_BYTES)
#define EXT_AT(version) (ETH_HLEN + HEADER_BYTES(version) + UDP_BYTES + BTH_BYTES)


/* libdeflate_crc32() or zlib's crc32(): the arguments of both use the same registers in the 64-bit ABIs. */
typedef u64 (*crc_fn)(u64 state, const void *data, u64 size);

/* Properties of each opcode, from wire/layout.py: bytes of the extended headers, or UNKNOWN; and whether it never has
 * a payload. */
struct opcodes {
	u8 extra[256];
	u8 headers_only[256];
};

struct packet {
	const u8 *ext;     /* extended headers */
	const u8 *payload; /* payload_bytes of it, without padding */
	u32 payload_bytes;
	u32 dqpn, psn;
	u8 opcode, ack_request, ce;
	u8 src[16]; /* of IPv4 the first four */
};

enum verdict { SOUND, MALFORMED, BAD_ICRC };

/* The CRC over the masked headers: eight bytes of ones, then IP, UDP and BTH with all mutable fields as ones. */
static inline u32 header_state(crc_fn crc, const u8 *ip, int version)
{
	u8 m[8 + 40 + UDP_BYTES + BTH_BYTES];
	u32 size = HEADER_BYTES(version);
	u8 *head = m + 8;

	memset(m, 0xFF, 8);
	memcpy(head, ip, size + UDP_BYTES + BTH_BYTES);
	if (version == 4) {
		head[1] = head[8] = head[10] = head[11] = 0xFF;
	} else {
		head[0] |= 0x0F;
		head[1] = head[2] = head[3] = head[7] = 0xFF;
	}
	head[size + 6] = head[size + 7] = 0xFF;
	head[size + UDP_BYTES + 4] = 0xFF;
	return (u32)crc(0, m, 8 + size + UDP_BYTES + BTH_BYTES);
}

static inline u32 ip_sum(const u8 *ip)
{
	u32 sum = 0;

	for (int i = 0; i < 20; i += 2)
		sum += get16(ip + i);
	sum = (sum & 0xFFFF) + (sum >> 16);
	return (sum & 0xFFFF) + (sum >> 16);
}

/* Read the IP and UDP headers; return the length that the frame must have, or 0 if it is not a RoCEv2 packet. */
static inline u32 read_headers(const u8 *f, int version)
{
	const u8 *ip = f + ETH_HLEN, *udp = ip + HEADER_BYTES(version);
	u32 total;

	if (version == 4) {
		total = get16(ip + 2);
		if (get16(f + 12) != ETH_P_IP || ip[0] != 0x45 || ip[9] != IPPROTO_UDP || get16(ip + 6) & 0x3FFF)
			return 0;
		if (get16(udp + 4) != total - 20 || ip_sum(ip) != 0xFFFF)
			return 0;
	} else {
		total = get16(ip + 4) + 40u;
		if (get16(f + 12) != ETH_P_IPV6 || ip[0] >> 4 != 6 || ip[6] != IPPROTO_UDP || get16(udp + 4) != get16(ip + 4))
			return 0;
	}
	return get16(udp + 2) == ROCE_PORT ? ETH_HLEN + total : 0;
}

/* Parse a frame of `size` bytes in a buffer of `room` bytes, all of which may be read. With a wrong ICRC, only the
 * destination QP and the source address are read. */
static inline enum verdict read_frame(const struct opcodes *ops, crc_fn crc, const u8 *f, u32 size, u32 room,
				      int version, struct packet *p)
{
	u32 ext_at = EXT_AT(version), expected = read_headers(f, version), payload_at, padded, pad, stored;
	const u8 *ip = f + ETH_HLEN, *bth = f + ext_at - BTH_BYTES;

	if (!expected || expected > room || expected < ext_at + ICRC_BYTES)
		return MALFORMED;
	if (size != expected && !(expected < size && size == MIN_ETHERNET))
		return MALFORMED;
	p->opcode = bth[0];
	if (bth[1] & 0x0F || ops->extra[p->opcode] == UNKNOWN)
		return MALFORMED;
	payload_at = ext_at + ops->extra[p->opcode];
	if (expected < payload_at + ICRC_BYTES)
		return MALFORMED;
	padded = expected - ICRC_BYTES - payload_at;
	pad = bth[1] >> 4 & 3;
	if (padded % 4 || padded < pad || (padded && ops->headers_only[p->opcode]))
		return MALFORMED;
	p->dqpn = get32(bth + 4) & PSN_MASK;
	memcpy(p->src, ip + (version == 4 ? 12 : 8), version == 4 ? 4 : 16);
	memcpy(&stored, f + expected - ICRC_BYTES, 4);
	if ((u32)crc(header_state(crc, ip, version), f + ext_at, expected - ICRC_BYTES - ext_at) != stored)
		return BAD_ICRC;
	p->ext = f + ext_at;
	p->payload = f + payload_at;
	p->payload_bytes = padded - pad;
	p->psn = get32(bth + 8) & PSN_MASK;
	p->ack_request = bth[8] >> 7;
	p->ce = (version == 4 ? ip[1] & ECN_CE : ip[1] >> 4 & ECN_CE) == ECN_CE;
	return SOUND;
}

/* Headers of one flow: Ethernet, IP, UDP, BTH of an empty packet; lengths, opcode and PSN are filled in per packet. */
struct flow {
	u8 head[94];
	u32 plain_sum; /* sum over IPv4's header with length and checksum 0 */
	u8 version;
};

struct made {
	struct iovec part[3];
	u32 parts, frame_bytes;
};

/* Build a packet: headers and ICRC in `room` (HEADER_ROOM bytes); the payload is not copied. */
static inline void build(const struct flow *flow, crc_fn crc, u8 *room, u8 opcode, u32 psn_word, const u8 *ext,
			 u32 ext_bytes, const u8 *payload, u32 size, struct made *out)
{
	u32 ext_at = EXT_AT(flow->version), pad = -size & 3, head = ext_at + ext_bytes;
	u32 frame = head + size + pad + ICRC_BYTES, sum, state;
	u8 *ip = room + ETH_HLEN, *udp = ip + HEADER_BYTES(flow->version), *bth = udp + UDP_BYTES, *tail = room + head;

	memcpy(room, flow->head, ext_at);
	memcpy(room + ext_at, ext, ext_bytes);
	if (flow->version == 4) {
		put16(ip + 2, frame - ETH_HLEN);
		sum = flow->plain_sum + frame - ETH_HLEN;
		sum = (sum & 0xFFFF) + (sum >> 16);
		put16(ip + 10, ~(sum + (sum >> 16)) & 0xFFFF);
	} else {
		put16(ip + 4, frame - ETH_HLEN - 40);
	}
	put16(udp + 4, frame - (u32)(udp - room));
	bth[0] = opcode;
	bth[1] = (u8)(pad << 4);
	put32(bth + 8, psn_word);
	memset(tail, 0, pad);
	state = (u32)crc(header_state(crc, ip, flow->version), room + ext_at, ext_bytes);
	if (size)
		state = (u32)crc(state, payload, size);
	if (pad)
		state = (u32)crc(state, tail, pad);
	memcpy(tail + pad, &state, ICRC_BYTES);
	out->part[0].base = room;
	out->frame_bytes = frame;
	if (size) {
		out->part[0].len = head;
		out->part[1].base = (void *)payload;
		out->part[1].len = size;
		out->part[2].base = tail;
		out->part[2].len = pad + ICRC_BYTES;
		out->parts = 3;
	} else {
		out->part[0].len = frame;
		out->parts = 1;
	}
}

#endif
