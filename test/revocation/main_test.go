// Package revocation shows that a holder hears a request to release its lock: of which kinds of
// locks, through which faults, and that no other holder hears it.
package revocation

import (
	"context"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

var bg = context.Background()

func TestMain(m *testing.M) { locktest.Main(m) }

// patient is an option that makes holders depend on messages: they look by themselves after
// a third of it.
var patient = rlock.WithWatchdogLease(3 * time.Hour)

// request asks for a lock, and wants somebody to be there, or nobody.
func request(t testing.TB, l rlock.Locker, want bool) {
	t.Helper()
	asked, err := l.RequestRelease(bg)
	if err != nil || asked != want {
		t.Fatalf("RequestRelease of %s: %v, %v, want %v", l.Name(), asked, err, want)
	}
}

// hears waits until leases are asked for.
func hears(t testing.TB, leases ...*rlock.Lease) {
	t.Helper()
	for _, l := range leases {
		select {
		case <-l.ReleaseRequested():
		case <-time.After(20 * time.Second):
			t.Fatalf("%s of %s hears nothing", l.Owner(), l.Name())
		}
	}
}

// deaf checks that leases were not asked for, as far as they know.
func deaf(t testing.TB, leases ...*rlock.Lease) {
	t.Helper()
	for _, l := range leases {
		select {
		case <-l.ReleaseRequested():
			t.Fatalf("%s of %s hears what does not concern it", l.Owner(), l.Name())
		default:
		}
	}
}
