package seam

import "time"

// SystemClock is the real time. Deadlines use the monotonic clock that time.Now contains.
type SystemClock struct{}

func (SystemClock) Now() time.Time                 { return time.Now() }
func (SystemClock) NewTimer(d time.Duration) Timer { return systemTimer{time.NewTimer(d)} }

type systemTimer struct{ *time.Timer }

func (t systemTimer) C() <-chan time.Time { return t.Timer.C }

// FarAway is longer than any lease or wait.
const FarAway = 365 * 24 * time.Hour

// Jitter returns a duration in [0, n) that depends on the caller and the turn, not on the order in
// which goroutines call it, so a simulation is reproducible.
func Jitter(seed uint64, who int64, turn int, n time.Duration) time.Duration {
	if n <= 0 {
		return 0
	}
	// SplitMix64's finalizer.
	x := seed ^ uint64(who)*0x9e3779b97f4a7c15 ^ uint64(turn)*0xd1342543de82ef95
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	x ^= x >> 31
	return time.Duration(x % uint64(n))
}
