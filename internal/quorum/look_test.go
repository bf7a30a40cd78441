package quorum

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/wire"
)

type redisClient = redis.UniversalClient

func TestInspectFindsTheHolder(t *testing.T) {
	t.Parallel()
	servers := miniServers(t, 3)
	h, other := join(t, servers), join(t, servers)
	if s := other.Inspect().Do(bg, budget); s.Err != nil || len(s.Outcome.Holders) > 0 || s.Outcome.Waiters != -1 {
		t.Errorf("%+v", s)
	}
	id, token := h.mustEnter()
	h.quiet()
	for _, l := range []*home{h, other} {
		s := l.Inspect().Do(bg, budget)
		if s.Err != nil || len(s.Outcome.Holders) != 1 {
			t.Fatalf("%+v", s)
		}
		holder, ttl := s.Outcome.Holders[0], s.Outcome.TTL
		if holder.HoldID != id || holder.Count != 1 || holder.Shared || s.Outcome.Token > token || ttl <= 0 || ttl > lease {
			t.Errorf("%+v", s)
		}
	}
	if p := other.Probe(id).Do(bg, budget); p.Err != nil || !p.Outcome.Held || p.Outcome.Entries != 1 {
		t.Errorf("%+v", p)
	}
	if p := other.Probe("").Do(bg, budget); p.Err != nil || !p.Outcome.Held || p.Outcome.Entries != 0 {
		t.Errorf("%+v", p)
	}
}

// What was not read is not free.
func TestVotesThatWereNotReadAreUnknown(t *testing.T) {
	t.Parallel()
	h := join(t, miniServers(t, 5))
	h.warm()
	id, _ := h.mustEnter()
	h.quiet()
	for i := range 3 {
		h.on(i, "inspect", faultproxy.Error)
	}
	s := h.Inspect().Do(bg, budget)
	if !errors.Is(s.Err, ErrNoQuorum) || !errors.Is(s.Err, wire.ErrUnreachable) {
		t.Errorf("%+v", s)
	}
	if p := h.Probe(id).Do(bg, budget); !errors.Is(p.Err, ErrNoQuorum) {
		t.Errorf("%+v", p)
	}
	h.servers[2].proxy.Handle(nil)
	if s := h.Inspect().Do(bg, budget); s.Err != nil || len(s.Outcome.Holders) != 1 {
		t.Errorf("%+v", s)
	}
}

func TestForceUnlock(t *testing.T) {
	t.Parallel()
	servers := miniServers(t, 5)
	h, admin := join(t, servers), join(t, servers)
	force := func(owner string) (bool, error) {
		r := admin.ForceUnlock(owner).Do(bg, budget)
		return r.Outcome, r.Err
	}
	if did, err := force(""); did || err != nil {
		t.Errorf("%v, %v", did, err)
	}
	id, _ := h.mustEnter()
	h.quiet()
	if did, err := force("another:1"); did || err != nil {
		t.Errorf("%v, %v", did, err)
	}
	if did, err := force(id); !did || err != nil {
		t.Errorf("%v, %v", did, err)
	}
	if h.votes() != "- - - - -" || slices.Min(h.tombstones()) == 0 {
		t.Errorf("votes %s, tombstones %v", h.votes(), h.tombstones())
	}
	h.warm()
	admin.warm()
	// With two nodes whose votes nobody knows a third may make a quorum, or not.
	for _, c := range []struct {
		votes []string
		did   bool
		err   error
	}{
		{[]string{"a:1", "a:1", "a:1"}, true, nil},
		{[]string{"a:1", "b:1", "c:1"}, false, ErrNoQuorum},
		{[]string{"", "", ""}, false, nil},
	} {
		for i := range 5 {
			if i >= 3 {
				admin.on(i, "force_unlock", faultproxy.Error)
			} else if id := c.votes[i]; id != "" {
				servers[i].rdb.HSet(bg, h.record, "attempt", id, "stamp", "1:1", "until", time.Now().Add(lease).UnixMicro())
			}
		}
		if did, err := force(""); did != c.did || !errors.Is(err, c.err) {
			t.Errorf("%v: %v, %v", c.votes, did, err)
		}
	}
	admin.pass()
}

// A forced unlock hears all nodes, also when those that have answered decide: each has had the vote taken back.
func TestForceUnlockWaitsForAllNodes(t *testing.T) {
	t.Parallel()
	h := join(t, miniServers(t, 3))
	h.warm()
	h.ForceUnlock("nobody:1").Do(bg, budget) // loads the script
	id, _ := h.mustEnter()
	h.quiet()
	proxy, sha := h.servers[2].proxy, loaded()["quorum/force_unlock"].SHA()
	reached, free := make(chan struct{}), make(chan struct{})
	proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
		if c.IsScript(sha) {
			close(reached)
			<-free
		}
		return faultproxy.Pass
	})
	done := make(chan protocol.Result[bool], 1)
	go func() { done <- h.ForceUnlock(id).Do(bg, budget) }()
	<-reached
	eventually(t, "two have answered", func() bool {
		return h.servers[0].rdb.Exists(bg, h.record).Val()+h.servers[1].rdb.Exists(bg, h.record).Val() == 0
	})
	time.Sleep(50 * time.Millisecond) // for a result that should not be there
	if len(done) > 0 {
		t.Error("it has not waited for the last node")
	}
	close(free)
	if r := <-done; r.Err != nil || !r.Outcome {
		t.Errorf("%+v", r)
	}
}

// A forced unlock of whoever has the lock leaves a hold alone that has come since the nodes told whose it is.
func TestForceUnlockLeavesANewerHold(t *testing.T) {
	t.Parallel()
	h := join(t, miniServers(t, 3))
	h.warm()
	h.ForceUnlock("nobody:1").Do(bg, budget) // loads the script
	h.mustEnter()
	h.quiet()
	sha := loaded()["quorum/force_unlock"].SHA()
	for _, s := range h.servers {
		asked := 0
		s.proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
			if c.IsScript(sha) {
				if asked++; asked == 2 {
					s.rdb.HSet(bg, h.record, "attempt", "newer:1")
				}
			}
			return faultproxy.Pass
		})
	}
	if r := h.ForceUnlock("").Do(bg, budget); r.Err != nil || r.Outcome {
		t.Errorf("%+v", r)
	}
	if h.votes() != "newer:1 newer:1 newer:1" {
		t.Errorf("votes %s", h.votes())
	}
}

// A forced unlock that is sent again and finds nothing does not know whether it was the
// one that freed the lock.
func TestRepeatedForceUnlockDoesNotKnow(t *testing.T) {
	t.Parallel()
	h := join(t, miniServers(t, 3))
	h.warm()
	h.ForceUnlock("nobody:1").Do(bg, budget) // loads the script
	id, _ := h.mustEnter()
	h.quiet()
	for i := range 2 {
		proxy, first := h.servers[i].proxy, true
		sha := loaded()["quorum/force_unlock"].SHA()
		proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
			if c.IsScript(sha) && first {
				first = false
				return faultproxy.ResetAfter
			}
			return faultproxy.Pass
		})
	}
	if r := h.ForceUnlock(id).Do(bg, budget); !errors.Is(r.Err, ErrNoQuorum) || !errors.Is(r.Err, errRepeated) {
		t.Errorf("%+v", r)
	}
	if h.votes() != "- - -" {
		t.Errorf("votes %s", h.votes())
	}
}

// A replica that is listed as a node beside its master does not repeat the vote of that.
func TestReplicaAmongTheNodesHasNoVote(t *testing.T) {
	t.Parallel()
	redistest.Need(t)
	pair := redistest.StartReplicated(t, 1)
	h := join(t, []*server{
		newServer(t, pair.Master.Addr()), newServer(t, pair.Replicas[0].Addr()), newServer(t, redistest.Start(t).Addr()),
	}, func(c *Config) { c.NodeTimeout = 500 * time.Millisecond })
	master, replica := h.servers[0].rdb, h.servers[1].rdb
	master.HSet(bg, h.record, "attempt", "rival:1", "stamp", "7:7", "until", time.Now().Add(time.Hour).UnixMicro())
	eventually(t, "the replica has it", func() bool { return replica.Exists(bg, h.record).Val() == 1 })
	if got := h.Inspect().Do(bg, budget); len(got.Outcome.Holders) > 0 {
		t.Errorf("one node has voted, and that is a holder: %+v", got)
	}
	if got := h.look(h.entry()); got.Outcome.Holder != "" {
		t.Errorf("one node has voted, and that is a holder: %+v", got)
	}
	h.settled()
}
