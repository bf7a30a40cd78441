package quorum

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

// A holder that dies without releasing has raised no counter by its release. The
// next token is greater all the same, also if the node with the highest counter is
// away, and any other one with it: the token was written back to a quorum before the
// hold was handed out.
func TestRedLockTokenIsWrittenBackToAQuorum(t *testing.T) {
	t.Parallel()
	n := startMasters(t)
	n.warm(t)
	acquire, release := locktest.SHA("quorum/acquire"), locktest.SHA("quorum/release")
	for also := range 4 {
		t.Run(fmt.Sprint("node ", also+1, " is away too"), func(t *testing.T) {
			name := fmt.Sprint("stock", also)
			n.unequal(t, name) // the last node is the highest
			// Only three vote, so each of them is needed.
			for i, p := range n.proxies {
				p.Handle(func(c faultproxy.Command) faultproxy.Action {
					if c.IsScript(acquire) && i < 2 {
						return faultproxy.Error
					}
					if c.IsScript(release) {
						return faultproxy.ResetBefore // the holder has died
					}
					return faultproxy.Pass
				})
			}
			first := locktest.MustLock(t, locktest.NewRedLock(t, name, n.clients(t), rlock.WithNodeTimeout(2*time.Second)), rlock.WithLease(time.Minute))
			if want := int64(100 + 10*4 + 1); first.Token() != want {
				t.Fatalf("token %d, not %d: the test is about another one", first.Token(), want)
			}
			for _, rdb := range n.plain { // the lease is over
				rdb.Del(bg, recordKey(name))
			}
			var cs []*rlock.Client
			for i, s := range n.servers {
				addr := s.Addr()
				if i == 4 || i == also {
					addr = fmt.Sprint("127.0.0.1:", i+1) // nobody is there
				}
				cs = append(cs, locktest.NewClient(t, locktest.Dialer(addr)(t, nil)))
			}
			next := locktest.MustLock(t, locktest.NewRedLock(t, name, cs, rlock.WithNodeTimeout(2*time.Second)))
			if next.Token() <= first.Token() {
				t.Errorf("token %d after %d", next.Token(), first.Token())
			}
			locktest.MustUnlock(t, next)
			n.pass()
		})
	}
}
