package locktest

import (
	"errors"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/seam"
)

// SHA is the hash under which a server knows a script.
func SHA(script string) string {
	_, sha := seam.Script(script)
	return sha
}

// ScriptText is what a server is sent of a script.
func ScriptText(script string) string {
	text, _ := seam.Script(script)
	return text
}

// LoadScripts lets a server know scripts, so that the first EVALSHA of each is the one
// that counts.
func LoadScripts(t testing.TB, rdb redis.UniversalClient, scripts ...string) {
	t.Helper()
	for _, script := range scripts {
		if err := rdb.ScriptLoad(bg, ScriptText(script)).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// OnNth applies an action to the n-th run of a script, counted from 1. The test
// fails if there are not so many: then it has shown nothing.
func OnNth(t testing.TB, proxy *faultproxy.Proxy, script string, n int64, action faultproxy.Action) *atomic.Int64 {
	t.Helper()
	var seen atomic.Int64
	t.Cleanup(func() {
		t.Helper()
		if got := seen.Load(); got < n && !t.Failed() {
			t.Errorf("%s ran %d times, so the fault in run %d did not happen", script, got, n)
		}
	})
	id := SHA(script)
	proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
		if c.IsScript(id) && seen.Add(1) == n {
			return action
		}
		return faultproxy.Pass
	})
	return &seen
}

// HeldUp waits until a proxy holds that many commands, for Release. That its handler has seen
// them is not enough: they may still be on their way to where Release takes them from.
func HeldUp(t testing.TB, proxy *faultproxy.Proxy, n int) {
	t.Helper()
	Eventually(t, "requests are held up on their way", func() bool { return proxy.Held() >= n })
}

// LossyActions are the ways to lose a reply, or the request.
var LossyActions = map[string]faultproxy.Action{
	"reply swallowed":     faultproxy.SwallowReply,
	"reset after running": faultproxy.ResetAfter,
	"reset before":        faultproxy.ResetBefore,
	"run twice":           faultproxy.Duplicate,
	"loading":             faultproxy.Error,
}

// EachLoss runs a scenario for each way to lose a reply of a script, in parallel:
// they wait for resends most of the time. Each has a Redis of its own, of the kinds of EachRedis.
func EachLoss(t *testing.T, script string, scenario func(t *testing.T, b *Backend, action faultproxy.Action)) {
	t.Helper()
	each := func(t *testing.T, start func(testing.TB) *Backend) {
		for name, action := range LossyActions {
			Beside(t, script+" "+name, func(t *testing.T) { scenario(t, start(t), action) })
		}
	}
	Beside(t, "miniredis", func(t *testing.T) {
		Repeated(t)
		each(t, OnMiniredis)
	})
	Beside(t, "standalone", func(t *testing.T) { each(t, func(t testing.TB) *Backend { return OnServer(t) }) })
}

// LosesReply reports whether a request runs whose reply does not come.
func LosesReply(action faultproxy.Action) bool {
	return action == faultproxy.SwallowReply || action == faultproxy.ResetAfter
}

// UnlockLossy unlocks a lease that is not lost while an action befalls its last release. If that ran and
// its reply was lost, the hold has ended, and nobody can confirm it.
func UnlockLossy(t testing.TB, l *rlock.Lease, action faultproxy.Action) {
	t.Helper()
	if err := l.Unlock(bg); LosesReply(action) {
		WantErr(t, err, rlock.ErrUnconfirmed, rlock.ErrUnreachable, nil, rlock.ErrLeaseLost)
	} else if err != nil {
		t.Fatal(err)
	}
}

// Ended is the error of an Unlock over a connection that loses replies, but nil if only that keeps
// it from being confirmed that the hold has ended.
func Ended(err error) error {
	if errors.Is(err, rlock.ErrUnconfirmed) && strings.Contains(err.Error(), "found the hold gone") {
		return nil
	}
	return err
}

// Unhurried runs a scenario in which a reply is lost. Half of the timeout has to do for the
// request that is sent again, and may be too short for a busy machine: when the scenario returns
// ErrUnreachable, it is run once more with twice the timeout.
func Unhurried(t testing.TB, scenario func(timeout time.Duration) error) {
	t.Helper()
	for timeout := Ample(2 * time.Second); ; timeout *= 2 {
		err := scenario(timeout)
		if err == nil {
			return
		}
		if !errors.Is(err, rlock.ErrUnreachable) || timeout > 10*time.Second {
			t.Fatal(err)
		}
	}
}

// Lossy loses an eighth of the scripts or their replies, or lets them run twice: in ways after
// which they are sent again immediately. Other commands, such as the commands of a new connection, get
// lost less often. An acquire does not run twice without its client's knowledge: the
// second run could come after the end of its hold, and hold the lock for a lease.
func Lossy(p *faultproxy.Proxy) {
	enter := SHA("lock/enter")
	p.Handle(func(c faultproxy.Command) faultproxy.Action {
		one := 40
		if c.Name == "evalsha" {
			one = 8
		}
		if rand.IntN(one) > 0 {
			return faultproxy.Pass
		}
		actions := []faultproxy.Action{faultproxy.ResetAfter, faultproxy.ResetBefore, faultproxy.Duplicate}
		if c.IsScript(enter) {
			actions = actions[:2]
		}
		return actions[rand.IntN(len(actions))]
	})
}
