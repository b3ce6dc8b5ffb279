/* Declarations of the parts of libc and of Linux's ABI that compiled code uses. It is built without system headers, so
 * that the same sources and clang give the same object everywhere. 64-bit, little-endian Linux.
 */
#ifndef HEDDLE_SYSTEM_H
#define HEDDLE_SYSTEM_H

#include <stddef.h>
#include <stdint.h>

#include "constants.h"

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int64_t i64;

struct iovec {
	void *base;
	size_t len;
};

struct msghdr {
	void *name;
	u32 namelen, pad1;
	struct iovec *iov;
	size_t iovlen;
	void *control;
	size_t controllen;
	int flags, pad2;
};

struct mmsghdr {
	struct msghdr hdr;
	u32 len, pad;
};

struct timespec {
	i64 sec, nsec;
};

struct itimerspec {
	struct timespec interval, value;
};

struct pollfd {
	int fd;
	short events, revents;
};

/* epoll_event is packed on x86-64 only (uapi/linux/eventpoll.h, EPOLL_PACKED). */
struct epoll_event {
	u32 events;
	u64 data;
}
#ifdef __x86_64__
__attribute__((packed))
#endif
;

#define POLLIN 1
#define EPOLLIN 1u
#define EPOLLOUT 4u
#define EPOLLERR 8u
#define EPOLL_CTL_ADD 1
#define EPOLL_CTL_MOD 3
#define CLOCK_MONOTONIC 1
#define TIMER_ABSTIME 1
#define TFD_TIMER_ABSTIME 1
#define MSG_TRUNC 0x20
#define MSG_DONTWAIT 0x40
#define EINTR 4
#define EAGAIN 11
#define ENETDOWN 100
#define ENOBUFS 105

void *calloc(size_t count, size_t size);
void *malloc(size_t size);
void *realloc(void *old, size_t size);
void free(void *memory);
void *memcpy(void *to, const void *from, size_t size);
void *memset(void *to, int byte, size_t size);
void *memmove(void *to, const void *from, size_t size);
int memcmp(const void *a, const void *b, size_t size);
int *__errno_location(void);
int sendmmsg(int fd, struct mmsghdr *messages, unsigned int count, int flags);
int recvmmsg(int fd, struct mmsghdr *messages, unsigned int count, int flags, struct timespec *timeout);
int ppoll(struct pollfd *fds, unsigned long count, const struct timespec *timeout, const void *mask);
int epoll_create1(int flags);
int epoll_ctl(int epfd, int op, int fd, struct epoll_event *event);
int epoll_wait(int epfd, struct epoll_event *events, int room, int timeout_ms);
int clock_gettime(int clock, struct timespec *now);
int clock_nanosleep(int clock, int flags, const struct timespec *until, struct timespec *left);
int timerfd_settime(int fd, int flags, const struct itimerspec *value, struct itimerspec *old);
long send(int fd, const void *data, size_t size, int flags);
long sendto(int fd, const void *data, size_t size, int flags, const void *address, u32 address_size);
long read(int fd, void *to, size_t size);
int close(int fd);

static inline int last_error(void) { return *__errno_location(); }

static inline i64 clock_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.sec * 1000000000 + t.nsec;
}

static inline u16 get16(const u8 *at) { return (u16)(at[0] << 8 | at[1]); }
static inline u32 get32(const u8 *at) { u32 v; memcpy(&v, at, 4); return __builtin_bswap32(v); }
static inline u64 get64(const u8 *at) { u64 v; memcpy(&v, at, 8); return __builtin_bswap64(v); }
static inline void put16(u8 *at, u32 v) { at[0] = (u8)(v >> 8); at[1] = (u8)v; }
static inline void put32(u8 *at, u32 v) { v = __builtin_bswap32(v); memcpy(at, &v, 4); }
static inline void put64(u8 *at, u64 v) { v = __builtin_bswap64(v); memcpy(at, &v, 8); }

#endif
