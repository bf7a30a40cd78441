package rlock_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
)

// lines keeps what a client logs.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// A waiter may come while the subscribe and unsubscribe of one before it are
// still on their way. The late answer to that unsubscribe is not taken for the
// node's, which would cost the whole connection, and the late confirmation of
// that subscribe not for the new one's, which would miss a release.
func TestWaiterAfterUnansweredUnsubscribe(t *testing.T) {
	t.Parallel()
	b := onServer(t)
	p := faultproxy.New(t, b.addr)
	slow := 20 * time.Millisecond
	p.Delay(func(c faultproxy.Command) time.Duration {
		if strings.HasSuffix(c.Name, "subscribe") {
			return slow
		}
		return 0
	})
	log := &lines{}
	c := newClientOn(t, dialer(p.Addr())(t, nil), rlock.WithLongestPoll(time.Minute), rlock.WithLogger(slog.New(slog.NewTextHandler(log, nil))))
	lease := mustLock(t, b.newClient(t).NewLock("resubscribe"))
	l := c.NewLock("resubscribe")
	subscribes := func(c faultproxy.Command) bool { return c.Name == "subscribe" }
	for end := time.Now().Add(20 * time.Second); p.Count(subscribes) < 10; {
		if time.Now().After(end) {
			t.Fatal("no overlap of subscribes on this machine")
		}
		_, err := l.Lock(context.Background(), rlock.WithWait(3*time.Millisecond))
		if !errors.Is(err, rlock.ErrNotAcquired) {
			t.Fatal(err)
		}
	}
	got := make(chan error, 1)
	go func() {
		lease, err := l.Lock(context.Background())
		if err == nil {
			err = lease.Unlock(context.Background())
		}
		got <- err
	}()
	eventually(t, "the last waits", func() bool {
		s, err := l.State(context.Background())
		return err == nil && s.Waiters == 1
	})
	mustUnlock(t, lease)
	select {
	case err := <-got:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("the release was missed")
	}
	if s := log.String(); s != "" {
		t.Errorf("logged:\n%s", s)
	}
}
