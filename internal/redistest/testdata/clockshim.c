// A clock that tests can set, for one process: LD_PRELOAD puts these functions
// before the C library's. They add what stands in a mapped file, in microseconds,
// to the time of day, and leave the monotonic clocks alone.
//
// They ask the kernel directly: they are called before the C library is ready.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t none;
static volatile int64_t *offset = &none;

__attribute__((constructor)) static void map_offset(void) {
	const char *path = getenv("REDISTEST_CLOCK");
	if (path == NULL)
		return;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		abort();
	void *p = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		abort();
	close(fd);
	offset = p;
}

static void shift(struct timespec *t) {
	int64_t us = *offset;
	t->tv_sec += us / 1000000;
	t->tv_nsec += us % 1000000 * 1000;
	if (t->tv_nsec < 0) {
		t->tv_nsec += 1000000000;
		t->tv_sec--;
	} else if (t->tv_nsec >= 1000000000) {
		t->tv_nsec -= 1000000000;
		t->tv_sec++;
	}
}

int clock_gettime(clockid_t id, struct timespec *t) {
	int rc = syscall(SYS_clock_gettime, id, t);
	if (rc == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
		shift(t);
	return rc;
}

int gettimeofday(struct timeval *tv, void *tz) {
	struct timespec t;
	(void)tz;
	if (clock_gettime(CLOCK_REALTIME, &t) != 0)
		return -1;
	tv->tv_sec = t.tv_sec;
	tv->tv_usec = t.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *out) {
	struct timespec t;
	if (clock_gettime(CLOCK_REALTIME, &t) != 0)
		return (time_t)-1;
	if (out != NULL)
		*out = t.tv_sec;
	return t.tv_sec;
}
