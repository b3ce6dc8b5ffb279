/* Load fastpath-aarch64.so as it is committed, and call its functions for a test: tests/unit/test_fastpath_aarch64.py.
 *
 * A static program without libc, for user-mode emulation (qemu-aarch64): no file of a foreign system is needed. It has
 * the functions of libc that system.h declares. Freed memory is overwritten and never used again, so that a later use
 * shows. In (fd 0): requests. Out (fd 1): results. It ends with its input.
 */
#include "system.h"

struct request {
	char name[24]; /* of a function of the object, or of those below */
	u32 pointers;  /* bit i: args[i] is an offset in the bytes behind this header */
	u32 bytes;
	u64 args[10];
};

struct elf {
	u8 ident[16];
	u16 type, machine;
	u32 version;
	u64 entry, phoff, shoff;
	u32 flags;
	u16 ehsize, phentsize, phnum;
};

struct segment {
	u32 type, flags;
	u64 offset, vaddr, paddr, filesz, memsz, align;
};

struct symbol {
	u32 name;
	u8 info, other;
	u16 index;
	u64 value, size;
};

struct relocation {
	u64 offset, info;
	i64 addend;
};

enum { READ = 63, WRITE = 64, OPENAT = 56, CLOSE = 57, EXIT = 94, MMAP = 222, EPOLL_CREATE1 = 20, EPOLL_CTL = 21,
       EPOLL_PWAIT = 22, PPOLL = 73, GETTIME = 113, NANOSLEEP = 115, RECVMMSG = 243, SENDMMSG = 269 };
enum { PT_LOAD = 1, PT_DYNAMIC = 2 };
enum { R_ABS64 = 257, R_GLOB_DAT = 1025, R_JUMP_SLOT = 1026, R_RELATIVE = 1027 };

static int error_number;
u64 __stack_chk_guard = 0x5AFE57ACC0FFEE00;

static i64 call6(u64 number, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f)
{
	register u64 x8 __asm__("x8") = number;
	register u64 x0 __asm__("x0") = a;
	register u64 x1 __asm__("x1") = b;
	register u64 x2 __asm__("x2") = c;
	register u64 x3 __asm__("x3") = d;
	register u64 x4 __asm__("x4") = e;
	register u64 x5 __asm__("x5") = f;

	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
	return (i64)x0;
}

/* As libc returns it: -1, and the reason in errno. */
static int libc(i64 result)
{
	if (result >= 0)
		return (int)result;
	error_number = (int)-result;
	return -1;
}

static void end(int code)
{
	for (;;)
		call6(EXIT, (u64)code, 0, 0, 0, 0, 0);
}

void __stack_chk_fail(void) { end(77); }
int *__errno_location(void) { return &error_number; }

void *memcpy(void *to, const void *from, size_t size)
{
	for (size_t i = 0; i < size; i++)
		((volatile u8 *)to)[i] = ((const u8 *)from)[i];
	return to;
}

void *memmove(void *to, const void *from, size_t size)
{
	if (to <= from)
		return memcpy(to, from, size);
	while (size--)
		((volatile u8 *)to)[size] = ((const u8 *)from)[size];
	return to;
}

void *memset(void *to, int byte, size_t size)
{
	for (size_t i = 0; i < size; i++)
		((volatile u8 *)to)[i] = (u8)byte;
	return to;
}

int memcmp(const void *a, const void *b, size_t size)
{
	for (size_t i = 0; i < size; i++)
		if (((const u8 *)a)[i] != ((const u8 *)b)[i])
			return ((const u8 *)a)[i] - ((const u8 *)b)[i];
	return 0;
}

static void *map(u64 size)
{
	i64 at = call6(MMAP, 0, size, 7 /* read, write, execute */, 0x22 /* private, anonymous */, (u64)-1, 0);

	if (at < 0)
		end(78);
	return (void *)at;
}

void *malloc(size_t size)
{
	static u8 *free_at, *last;
	size_t room = (size + 16 + 63) & ~(size_t)63;
	u8 *at;

	if (!free_at || room > (size_t)(last - free_at)) {
		size_t chunk = room > (1 << 22) ? room : 1 << 22;

		free_at = map(chunk);
		last = free_at + chunk;
	}
	at = free_at + 16;
	*(size_t *)free_at = size;
	free_at += room;
	return memset(at, 0xA5, size);
}

void *calloc(size_t count, size_t size) { return memset(malloc(count * size), 0, count * size); }

void free(void *memory)
{
	if (memory)
		memset(memory, 0xDD, *(size_t *)((u8 *)memory - 16));
}

void *realloc(void *old, size_t size)
{
	void *made = malloc(size);
	size_t before = old ? *(size_t *)((u8 *)old - 16) : 0;

	memcpy(made, old, before < size ? before : size);
	free(old);
	return made;
}

#define U (u64)
int sendmmsg(int fd, struct mmsghdr *m, unsigned int n, int flags)
{
	return libc(call6(SENDMMSG, U fd, U m, n, U flags, 0, 0));
}

int recvmmsg(int fd, struct mmsghdr *m, unsigned int n, int flags, struct timespec *t)
{
	return libc(call6(RECVMMSG, U fd, U m, n, U flags, U t, 0));
}

int ppoll(struct pollfd *fds, unsigned long n, const struct timespec *t, const void *mask)
{
	return libc(call6(PPOLL, U fds, n, U t, U mask, 8, 0));
}

int epoll_create1(int flags) { return libc(call6(EPOLL_CREATE1, U flags, 0, 0, 0, 0, 0)); }
int epoll_ctl(int at, int op, int fd, struct epoll_event *e) { return libc(call6(EPOLL_CTL, U at, U op, U fd, U e, 0, 0)); }

int epoll_wait(int at, struct epoll_event *e, int n, int ms)
{
	return libc(call6(EPOLL_PWAIT, U at, U e, U n, U ms, 0, 8));
}

int clock_gettime(int clock, struct timespec *t) { return libc(call6(GETTIME, U clock, U t, 0, 0, 0, 0)); }

int clock_nanosleep(int clock, int flags, const struct timespec *t, struct timespec *left)
{
	return (int)-call6(NANOSLEEP, U clock, U flags, U t, U left, 0, 0);
}

int close(int fd) { return libc(call6(CLOSE, U fd, 0, 0, 0, 0, 0)); }

/* zlib's CRC-32, a bit at a time. */
static u64 crc32(u64 state, const void *data, u64 size)
{
	u32 crc = ~(u32)state;

	for (u64 i = 0; i < size; i++) {
		crc ^= ((const u8 *)data)[i];
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
	}
	return (u32)~crc;
}

static int same(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}

static const struct {
	const char *name;
	void *at;
} OURS[] = {
	{ "__errno_location", (void *)__errno_location }, { "__stack_chk_fail", (void *)__stack_chk_fail },
	{ "__stack_chk_guard", &__stack_chk_guard }, { "calloc", (void *)calloc }, { "clock_gettime", (void *)clock_gettime },
	{ "clock_nanosleep", (void *)clock_nanosleep }, { "close", (void *)close }, { "epoll_create1", (void *)epoll_create1 },
	{ "epoll_ctl", (void *)epoll_ctl }, { "epoll_wait", (void *)epoll_wait }, { "free", (void *)free },
	{ "malloc", (void *)malloc }, { "memcmp", (void *)memcmp }, { "memcpy", (void *)memcpy },
	{ "memmove", (void *)memmove }, { "memset", (void *)memset }, { "ppoll", (void *)ppoll },
	{ "realloc", (void *)realloc }, { "recvmmsg", (void *)recvmmsg }, { "sendmmsg", (void *)sendmmsg },
};

static u8 *object;		/* where the object is loaded */
static const struct symbol *symbols;
static const char *names;
static u32 symbol_count;

static u64 find(const char *name)
{
	for (u32 i = 0; i < symbol_count; i++)
		if (symbols[i].index && same(names + symbols[i].name, name))
			return U object + symbols[i].value;
	for (u32 i = 0; i < sizeof(OURS) / sizeof(*OURS); i++)
		if (same(OURS[i].name, name))
			return U OURS[i].at;
	end(79);
	return 0;
}

static void relocate(const struct relocation *r, u64 bytes)
{
	for (u64 i = 0; i < bytes / sizeof(*r); i++) {
		u64 *at = (u64 *)(object + r[i].offset);
		u32 kind = (u32)r[i].info;

		if (kind == R_RELATIVE)
			*at = U object + U r[i].addend;
		else if (kind == R_ABS64 || kind == R_GLOB_DAT || kind == R_JUMP_SLOT)
			*at = find(names + symbols[r[i].info >> 32].name) + U r[i].addend;
		else
			end(80);
	}
}

static void load(const char *path)
{
	u8 *file = map(1 << 20);
	i64 fd = call6(OPENAT, (u64)-100, U path, 0, 0, 0, 0), more, size = 0;
	const struct elf *elf = (const struct elf *)file;
	const struct segment *s;
	u64 d[40] = { 0 };

	while (fd >= 0 && (more = call6(READ, U fd, U file + U size, U(1 << 20) - U size, 0, 0, 0)) > 0)
		size += more;
	if (size < (i64)sizeof(*elf))
		end(81);
	s = (const struct segment *)(file + elf->phoff);
	object = map(1 << 20);
	for (u32 i = 0; i < elf->phnum; i++)
		if (s[i].type == PT_LOAD)
			memcpy(object + s[i].vaddr, file + s[i].offset, s[i].filesz);
	for (u32 i = 0; i < elf->phnum; i++)
		for (const u64 *at = (const u64 *)(object + s[i].vaddr); s[i].type == PT_DYNAMIC && *at; at += 2)
			if (*at < 40)
				d[*at] = at[1];
	names = (const char *)object + d[5];
	symbols = (const struct symbol *)(object + d[6]);
	symbol_count = ((const u32 *)(object + d[4]))[1]; /* DT_HASH: its second word is their number */
	relocate((const struct relocation *)(object + d[7]), d[8]);
	relocate((const struct relocation *)(object + d[23]), d[2]);
}

static int take(void *to, u64 size)
{
	for (i64 got; size; size -= U got, to = (u8 *)to + got)
		if ((got = call6(READ, 0, U to, size, 0, 0, 0)) <= 0)
			return 0;
	return 1;
}

static void give(const void *from, u64 size)
{
	for (i64 sent; size; size -= U sent, from = (const u8 *)from + sent)
		if ((sent = call6(WRITE, 1, U from, size, 0, 0, 0)) <= 0)
			end(82);
}

typedef u64 (*function)(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64);

void serve(const u64 *stack)
{
	struct request r;

	load((const char *)stack[2]);
	while (take(&r, sizeof(r))) {
		u8 *bytes = malloc(r.bytes);
		u64 *a = r.args, result;

		if (!take(bytes, r.bytes))
			break;
		for (u32 i = 0; i < 10; i++)
			if (r.pointers >> i & 1)
				a[i] += U bytes;
		if (same(r.name, "crc"))
			result = U crc32;
		else if (same(r.name, "read"))
			result = 0, bytes = (u8 *)a[0], r.bytes = (u32)a[1];
		else
			result = ((function)find(r.name))(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9]);
		give(&result, 8);
		give(bytes, r.bytes);
	}
	end(0);
}

__asm__(".globl _start\n_start:\n\tmov x0, sp\n\tbl serve\n");
