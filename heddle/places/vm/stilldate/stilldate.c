/* A date that stands still, for the process that loads this object before libc (ld.so's LD_PRELOAD).
 *
 * QEMU chooses the size of its table of translated addresses by how full it was in the last 100 ms of the machine's date
 * (tlb_mmu_resize_locked in accel/tcg/cputlb.c). The size decides when the guest's page tables are read again, which a
 * guest notices. With a date that stands still, the size follows from the guest's instructions only.
 *
 * Other clocks are as before: QEMU waits by CLOCK_MONOTONIC.
 */
#include "system.h"

#define API __attribute__((visibility("default")))
#define CLOCK_REALTIME 0
#define CLOCK_REALTIME_COARSE 5
#define CLOCK_GETTIME 228 /* the system call, on x86-64 */
#define DATE 1767225600   /* 2026-01-01T00:00:00Z, the date at which the guest's clock begins */

struct timeval {
	i64 sec, usec;
};

long syscall(long number, ...);

API int gettimeofday(struct timeval *now, void *zone)
{
	(void)zone;
	if (now) {
		now->sec = DATE;
		now->usec = 0;
	}
	return 0;
}

API int clock_gettime(int clock, struct timespec *now)
{
	if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)
		return (int)syscall(CLOCK_GETTIME, clock, now);
	now->sec = DATE;
	now->nsec = 0;
	return 0;
}
