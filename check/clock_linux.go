package check

import "golang.org/x/sys/unix"

// Now is the time since the machine started, which all processes share and nobody sets.
func Now() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err)
	}
	return t.Nano()
}
