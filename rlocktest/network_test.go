package rlocktest

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// go-redis may open a connection in the background when its client is closed already: the server, which is closed after
// its network, gets none from then on.
func TestServerGetsNoConnectionAfterItsNetworkIsClosed(t *testing.T) {
	t.Parallel()
	for range 100 {
		var closed atomic.Bool
		n := newNetwork(false)
		n.serve = func(net.Conn) {
			time.Sleep(100 * time.Microsecond)
			if closed.Load() {
				t.Error("the server is closed")
			}
		}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for !closed.Load() {
					if _, err := n.dial(context.Background(), "", ""); err != nil {
						return
					}
				}
			})
		}
		time.Sleep(time.Millisecond)
		n.close()
		closed.Store(true)
		wg.Wait()
	}
}
