/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
 *
 * jhash2() of include/linux/jhash.h for the lengths that are used here: 1, 2, 4 and 10 words.
 */
#ifndef HEDDLE_JHASH_H
#define HEDDLE_JHASH_H
#include "heddle.h"

#define rol32(word, shift) ((word) << (shift) | (word) >> (32 - (shift)))

/* __jhash_mix */
#define JHASH_MIX(a, b, c) do { \
	a -= c; a ^= rol32(c, 4);  c += b; \
	b -= a; b ^= rol32(a, 6);  a += c; \
	c -= b; c ^= rol32(b, 8);  b += a; \
	a -= c; a ^= rol32(c, 16); c += b; \
	b -= a; b ^= rol32(a, 19); a += c; \
	c -= b; c ^= rol32(b, 4);  b += a; \
} while (0)

/* __jhash_final */
#define JHASH_FINAL(a, b, c) do { \
	c ^= b; c -= rol32(b, 14); \
	a ^= c; a -= rol32(c, 11); \
	b ^= a; b -= rol32(a, 25); \
	c ^= b; c -= rol32(b, 16); \
	a ^= c; a -= rol32(c, 4); \
	b ^= a; b -= rol32(a, 14); \
	c ^= b; c -= rol32(b, 24); \
} while (0)

#define JHASH_START(words, seed) (0xdeadbeef + ((words) << 2) + (seed))

INLINE __u32 jhash_1(__u32 k0, __u32 seed)
{
	__u32 a, b, c;

	a = b = c = JHASH_START(1, seed);
	a += k0;
	JHASH_FINAL(a, b, c);
	return c;
}

INLINE __u32 jhash_2(__u32 k0, __u32 k1, __u32 seed)
{
	__u32 a, b, c;

	a = b = c = JHASH_START(2, seed);
	a += k0;
	b += k1;
	JHASH_FINAL(a, b, c);
	return c;
}

INLINE __u32 jhash_4(__u32 k0, __u32 k1, __u32 k2, __u32 k3, __u32 seed)
{
	__u32 a, b, c;

	a = b = c = JHASH_START(4, seed);
	a += k0;
	b += k1;
	c += k2;
	JHASH_MIX(a, b, c);
	a += k3;
	JHASH_FINAL(a, b, c);
	return c;
}

/* Nine consecutive words in network byte order, and one more. A loop, since unrolled code for ten words is long. */
INLINE __u32 jhash_10(const __u32 *words, __u32 last, __u32 seed)
{
	__u32 a, b, c, i;

	a = b = c = JHASH_START(10, seed);
#pragma clang loop unroll(disable)
	for (i = 0; i < 9; i += 3) {
		a += ntohl(words[i]);
		b += ntohl(words[i + 1]);
		c += ntohl(words[i + 2]);
		JHASH_MIX(a, b, c);
	}
	a += last;
	JHASH_FINAL(a, b, c);
	return c;
}

#endif
