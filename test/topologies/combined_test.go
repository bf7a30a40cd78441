package topologies

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

// Requests of many callers share pipelines, one for each node. A slot that moves meanwhile costs
// nobody a lease.
func TestClusterCombinesCallers(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	client := locktest.Join(t, c.Client())
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var callers sync.WaitGroup
	var once sync.Once
	begun := make(chan struct{})
	for i := range 100 {
		l := client.NewLock(fmt.Sprint("own:", i))
		if i%4 == 0 {
			l = client.NewLock(fmt.Sprint("{moves}:", i))
		}
		callers.Go(func() {
			for n := range 20 {
				lease, err := l.Lock(ctx)
				if err == nil {
					err = lease.Unlock(ctx)
				}
				if err != nil {
					t.Error(err)
					return
				}
				if n == 2 {
					once.Do(func() { close(begun) })
				}
			}
		})
	}
	<-begun
	slot := c.Slot("{moves}")
	c.MigrateSlot(slot, elsewhere(c, slot))
	callers.Wait()
}
